"""The client of the API server, with a real HTTP server on loopback."""

from __future__ import annotations

import base64
import gzip
import json
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
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


def test_a_ca_whose_file_was_removed_is_written_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubeconfig may have the CA in itself; the library writes it to a file in /tmp, which something may clean."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    kubeconfig = server.kubeconfig(tmp_path)
    told = json.loads(kubeconfig.read_text())
    told["clusters"][0]["cluster"] = {
        "server": f"https://127.0.0.1:{server.port}",
        "certificate-authority-data": base64.b64encode(b"no certificate").decode(),
    }
    kubeconfig.write_text(json.dumps(told))
    api = ApiServer(kubeconfig)
    for _ in range(2):
        with pytest.raises(ApiServerError, match="NO_CERTIFICATE_OR_CRL_FOUND"):
            api.get("/api")
        (written,) = (tmp_path / "tmp").iterdir()
        written.unlink()
    api.close()


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
    assert asked.wait(30)
    api.close()
    api.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(answers) == 1


def endless(server: Server, begin: Callable[[BaseHTTPRequestHandler], object], piece: bytes, pause_s: float) -> None:
    """Have the server begin an answer, and repeat a piece until the client has gone."""

    def answer(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        begin(handler)
        while not server.is_over.wait(pause_s):
            handler.wfile.write(piece)
        return True

    server.answer = answer


def begin_body(handler: BaseHTTPRequestHandler, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(10**12))
    handler.end_headers()


@pytest.mark.parametrize("status", [200, 403])
def test_a_byte_now_and_then_does_not_keep_a_call_longer_than_its_time_limit(
    server: Server, api: ApiServer, status: int
) -> None:
    endless(server, lambda handler: begin_body(handler, status), b" ", 0.1)
    assert 0.4 < seconds_of(lambda: api.get(CLAIM, timeout_s=0.5)) < 3


def test_a_call_that_is_repeated_with_renewed_credentials_has_one_time_limit(server: Server, api: ApiServer) -> None:
    def slow(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        server.is_over.wait(30 if server.seen[1:] else 2)
        return send(handler, 401, {})

    server.answer = slow
    assert seconds_of(lambda: api.get(CLAIM, timeout_s=3)) < 4.8, "a limit for each would be 5 s"
    assert len(server.seen) == 2


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes that fails."""
    began = time.monotonic()
    with pytest.raises(ApiServerError):
        call()
    return time.monotonic() - began


@pytest.mark.parametrize("method", ["get", "get_bytes", "list", "refused"])
def test_an_answer_without_end_is_read_to_a_size(server: Server, api: ApiServer, method: str) -> None:
    sent = [0]

    def answer(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        begin_body(handler, 403 if method == "refused" else 200)
        while not server.is_over.is_set():
            handler.wfile.write(b"[1]," * (1 << 14))
            sent[0] += 1 << 16
        return True

    server.answer = answer
    calls = {"get_bytes": lambda: api.get_bytes(CLAIM), "list": lambda: api.items("/slices")}
    with pytest.raises(ApiServerError) as caught:
        calls.get(method, lambda: api.get(CLAIM))()
    assert "is larger than" in str(caught.value) or method == "refused"
    assert sent[0] < 64 << 20


def test_a_small_answer_that_would_be_a_large_object_is_refused(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, _: send(handler, 200, b'{"a": [' + b"[]," * 1_000_000 + b"[]]}")
    with pytest.raises(ApiServerError, match="more than 200000 values"):
        api.get(CLAIM)


@pytest.mark.parametrize("told", [b"null", b"[]", b"1", b'"text"', b"[" * 200_000 + b"]" * 200_000, b"NaN"])
def test_an_answer_that_is_no_object_is_an_error_of_the_api_server(server: Server, api: ApiServer, told: bytes) -> None:
    server.answer = lambda handler, _: send(handler, 200, told)
    with pytest.raises(ApiServerError, match="the API server's answer"):
        api.get(CLAIM)


def test_a_refusal_that_nests_200000_levels_has_its_status(server: Server, api: ApiServer) -> None:
    server.answer = lambda handler, _: send(handler, 403, b'{"a":' * 9_000 + b"1" + b"}" * 9_000)
    with pytest.raises(ApiServerError) as caught:
        api.get(CLAIM)
    assert caught.value.status == 403


@pytest.mark.parametrize("told", [{}, {"items": None}, {"items": {}}, {"items": [1]}, {"items": [None]}])
def test_a_list_without_its_objects_is_an_error_of_the_api_server(server: Server, api: ApiServer, told: object) -> None:
    server.answer = lambda handler, _: send(handler, 200, told)
    with pytest.raises(ApiServerError, match="no list of objects"):
        api.items("/slices")
    server.answer = lambda handler, _: send(handler, 200, {"items": [{"a": 1}]})
    assert api.items("/slices", {"a": "b"}) == [{"a": 1}]


@pytest.mark.parametrize("line", [b"[1]\n", b"null\n", b"[" * 200_000 + b"\n", b"1" * 65536], ids=len)
def test_a_watch_whose_line_is_no_event_or_has_no_end_ends(server: Server, api: ApiServer, line: bytes) -> None:
    sent = [0]

    def stream(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        begin_stream(handler)
        while not server.is_over.is_set():
            send_piece(handler, line)
            sent[0] += len(line)
        return True

    server.answer = stream
    with pytest.raises(ApiServerError, match="watching ended early"):
        next(api.watch("/slices", {}, 5))
    assert sent[0] < 64 << 20


def test_a_watch_that_comes_byte_by_byte_ends_with_its_time(
    server: Server, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.host.kubernetes.api.CALL_S", 0.3)
    endless(server, begin_stream, b"1\r\n \r\n", 0.1)
    assert 0.4 < seconds_of(lambda: next(api.watch("/slices", {}, 0.3))) < 3


def test_a_compressed_answer_that_nobody_asked_for_is_not_unpacked(server: Server, api: ApiServer) -> None:
    def packed(handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
        data = gzip.compress(b'{"a": 1}')
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        return True

    server.answer = packed
    with pytest.raises(ApiServerError, match="cannot be read"):
        api.get(CLAIM)


def test_a_missing_package_is_no_unreachable_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # as Python does where it is not installed
    with pytest.raises(ApiServerError) as caught:
        ApiServer(tmp_path / "kubeconfig").get(CLAIM)
    assert str(caught.value).startswith("nri-rdma: INSTALL: the Python package kubernetes is not installed, ")
    assert "with its extra claims" in str(caught.value)


def test_who_keeps_the_error_of_an_answer_does_not_keep_the_answer(server: Server, api: ApiServer) -> None:
    """A future keeps its error, and the error its frames, until the next garbage collection."""
    bodies = [b"[" + b" " * 2_900_000, b"[" + b" " * 2_900_000 + b"1]", b" " * 4_000_000, b'{"a": [' + b"1," * 900_000]
    kept = []
    tracemalloc.start()
    try:
        for body in bodies:
            server.answer = lambda handler, _, body=body: send(handler, 200, body)  # type: ignore[misc]  # bound now
            for _ in range(5):
                with pytest.raises(ApiServerError) as caught:
                    api.get(CLAIM)
                kept.append(caught.value)
        assert tracemalloc.get_traced_memory()[0] < 10_000_000
    finally:
        tracemalloc.stop()
