"""The client of the API server, with a real HTTP server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from nri_rdma.errors import ApiServerError
from nri_rdma.host.kubernetes.api import ApiServer
from tests.rig.api_server import Seen, Server, begin_stream, running, send, send_piece

CLAIM = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/rails"


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(server.kubeconfig(tmp_path))
    yield made
    made.close()


def test_an_object_is_asked_by_its_path_query_and_token(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, _: send(handler, 200, {"metadata": {"uid": "u1"}})
    assert api.get(CLAIM, {"fieldSelector": "spec.driver=a,spec.nodeName=b"}) == {"metadata": {"uid": "u1"}}
    (seen,) = server.seen
    assert (seen.method, seen.path, seen.token) == ("GET", CLAIM, "Bearer secret")
    assert seen.query == {"fieldSelector": ["spec.driver=a,spec.nodeName=b"]}


def test_an_object_is_created_replaced_changed_and_deleted_with_its_json(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, seen: send(handler, 200, {"was": seen.body})
    assert api.create("/a", {"x": 1}) == {"was": {"x": 1}}
    assert api.replace("/a/b", {"x": 2}) == {"was": {"x": 2}}
    assert api.merge("/a/b", {"x": None}) == {"was": {"x": None}}
    api.delete("/a/b")
    assert [(it.method, it.path, it.body) for it in server.seen] == [
        ("POST", "/a", {"x": 1}),
        ("PUT", "/a/b", {"x": 2}),
        ("PATCH", "/a/b", {"x": None}),
        ("DELETE", "/a/b", None),
    ]
    assert [it.content_type for it in server.seen[:3]] == [
        "application/json",
        "application/json",
        "application/merge-patch+json",
    ]


@pytest.mark.parametrize("status", [403, 404, 409, 500])
def test_a_refusal_has_its_status_and_the_servers_sentence_and_is_not_repeated(
    server: Server, api: ApiServer, status: int
) -> None:
    server.answer = lambda handler, _: send(handler, status, {"message": "so says the server"})
    with pytest.raises(ApiServerError, match=f"the API server answers {status} to GET") as caught:
        api.get(CLAIM)
    assert (caught.value.status, caught.value.where, caught.value.detail) == (status, CLAIM, "so says the server")
    assert len(server.seen) == 1


@pytest.mark.parametrize(("data", "detail"), [(b"<html>", "<html>"), (b"[1]", "[1]"), (b"\xff", "\ufffd"), (b"", "")])
def test_a_refusal_by_a_proxy_may_be_anything(server: Server, api: ApiServer, data: bytes, detail: str) -> None:
    server.answer = lambda handler, _: send(handler, 502, data)
    with pytest.raises(ApiServerError) as caught:
        api.get(CLAIM)
    assert (caught.value.status, caught.value.detail) == (502, detail)


def test_deleting_what_is_gone_is_no_error_and_another_refusal_is_one(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, seen: send(handler, 404 if seen.path == "/gone" else 403, {"message": "no"})
    api.delete("/gone")
    with pytest.raises(ApiServerError, match="403"):
        api.delete("/mine")


def test_a_server_that_hangs_fails_the_call_at_its_time_limit(server: Server, api: ApiServer) -> None:
    server.answer = lambda _handler, _seen: server.is_over.wait(20)
    began = time.monotonic()
    with pytest.raises(ApiServerError, match="does not answer") as caught:
        api.get(CLAIM, timeout_s=0.3)
    assert 0.25 < time.monotonic() - began < 5
    assert (caught.value.status, len(server.seen)) == (0, 1)


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_that_breaks_off_is_an_error_of_the_api_server(server: Server, api: ApiServer, status: int) -> None:
    def broken(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"message": ')
        handler.close_connection = True
        return True

    server.answer = broken
    with pytest.raises(ApiServerError):
        api.get(CLAIM)


def test_an_answer_that_is_no_json_is_an_error_of_the_api_server(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, _: send(handler, 200, b"<html>")
    with pytest.raises(ApiServerError, match="cannot be read"):
        api.get(CLAIM)


def test_nobody_there_is_an_error_of_the_api_server(tmp_path: Path) -> None:
    with running() as server:
        path = server.kubeconfig(tmp_path)
    for kubeconfig in (path, tmp_path / "absent"):
        with pytest.raises(ApiServerError, match="does not answer") as caught:
            ApiServer(kubeconfig).get(CLAIM, timeout_s=2)
        assert caught.value.status == 0


def test_a_watch_yields_each_line_however_it_is_cut(server: Server, api: ApiServer) -> None:
    def stream(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        begin_stream(handler)
        for piece in (b'{"type":"AD', b'DED"}\n{"type":"MODIFIED"}\n', b"\n", b'{"type":"DELETED"}\n', b""):
            send_piece(handler, piece)
        return True

    server.answer = stream
    events = list(api.watch("/slices", {"fieldSelector": "a=b"}, 7.9))
    assert [it["type"] for it in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert server.seen[0].query == {"fieldSelector": ["a=b"], "watch": ["true"], "timeoutSeconds": ["7"]}


def test_a_watch_that_is_cut_tells_what_came_before(server: Server, api: ApiServer) -> None:
    def cut(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        begin_stream(handler)
        send_piece(handler, b'{"type":"ADDED"}\n')
        handler.wfile.write(b"ff\r\n{")
        handler.close_connection = True
        return True

    server.answer = cut
    events: list[object] = []
    with pytest.raises(ApiServerError, match="watching ended early"):
        for event in api.watch("/slices", {}, 5):
            events.append(event)  # noqa: PERF402 - what came before the error
    assert events == [{"type": "ADDED"}]
    server.answer = lambda handler, _: send(handler, 410, {"message": "too old"})
    with pytest.raises(ApiServerError, match="410"):
        next(api.watch("/slices", {}, 5))


def test_a_renewed_token_is_used_without_a_restart(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    valid = ["Bearer old"]
    server.answer = lambda handler, seen: send(handler, 200 if seen.token in valid else 401, {"message": "who?"})
    api = ApiServer(server.kubeconfig(tmp_path, tokenFile=str(token)))
    api.get("/a")
    valid[:] = ["Bearer new"]
    with pytest.raises(ApiServerError, match="401"):
        api.get("/a")
    token.write_text("new")
    assert [api.get("/a"), next(api.watch("/a", {}, 5))] == [{"message": "who?"}] * 2
    api.close()
    assert [it.token for it in server.seen] == ["Bearer old"] * 4 + ["Bearer new"] * 2


def test_closing_twice_and_during_a_call_is_no_error(server: Server, api: ApiServer) -> None:
    asked = threading.Event()

    def slow(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        asked.set()
        server.is_over.wait(0.3)
        return send(handler, 200, {"a": 1})

    server.answer = slow
    answers: list[object] = []

    def call() -> None:
        try:
            answers.append(api.get("/a"))
        except ApiServerError as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert asked.wait(5)
    api.close()
    api.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(answers) == 1
