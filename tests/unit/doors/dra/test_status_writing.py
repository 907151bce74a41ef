"""The status of a claim is patched, and written in protobuf where the API server takes no patch."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.doors.dra.status_writing import write_status
from nri_rdma.doors.dra.statuses import ClaimState
from nri_rdma.errors import ApiServerError
from nri_rdma.host.kubernetes.api import ApiServer
from tests.rig.api_server import PROTOBUF, Seen, Server, running, send
from tests.rig.kubelet import message, text
from tests.unit.doors.dra.claimed import NAME, OURS, PATH

STATE = ClaimState(states={}, was_given=frozenset(), failures={}, refusal="it cannot be served")


class Picky:
    """An API server that takes no patch of the claim; `refusal` is what it says."""

    def __init__(self, server: Server) -> None:
        self.refusal = "status.allocation: field is immutable"
        self.status = 422
        self.version = "7"
        """Of the claim in protobuf."""
        self.put: list[bytes] = []
        result = {"request": "nic", "driver": OURS, "pool": "node-a", "device": "d0"}
        server.claims[PATH] = {
            "metadata": {"namespace": "team", "name": "rails", "uid": "u1", "resourceVersion": "7"},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        server.answer = self._answer

    def _answer(self, handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
        if seen.method == "PATCH":
            return send(handler, self.status, {"message": self.refusal})
        if seen.method == "PUT":
            self.put.append(seen.body)
            return send(handler, 200, {})
        if seen.accept != PROTOBUF:
            return False
        return send(handler, 200, b"k8s\x00" + message(2, message(1, text(6, self.version))))


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def picky(server: Server) -> Picky:
    return Picky(server)


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(server.kubeconfig(tmp_path))
    yield made
    made.close()


def methods(server: Server) -> list[tuple[str, str]]:
    """The calls, each with the last part of its path."""
    return [(it.method, it.path.rpartition("/")[2]) for it in server.seen]


def test_a_patch_is_enough_where_the_api_server_takes_it(server: Server, picky: Picky, api: ApiServer) -> None:
    server.answer = lambda _handler, _seen: False
    assert not write_status(api, NAME, STATE, counts_bytes=False)
    assert methods(server) == [("GET", "rails"), ("PATCH", "status")]
    entries: list[dict[str, Any]] = server.claims[PATH]["status"]["devices"]
    assert [it["conditions"][0]["message"] for it in entries] == ["it cannot be served"]
    assert not write_status(api, NAME, STATE, counts_bytes=False)
    assert methods(server)[2:] == [("GET", "rails")]


def test_where_a_patch_is_invalid_the_claim_is_replaced_in_protobuf_and_at_once_the_next_time(
    server: Server, picky: Picky, api: ApiServer
) -> None:
    assert write_status(api, NAME, STATE, counts_bytes=False)
    whole = [("GET", "rails"), ("GET", "rails"), ("PUT", "status")]
    assert methods(server) == [whole[0], ("PATCH", "status"), *whole[1:]]
    assert server.seen[-1].content_type == PROTOBUF
    (put,) = picky.put
    assert b"it cannot be served" in put
    assert write_status(api, NAME, STATE, counts_bytes=True)
    assert methods(server)[4:] == whole


def test_a_claim_that_changes_between_is_read_again_and_not_for_ever(
    server: Server, picky: Picky, api: ApiServer
) -> None:
    picky.version = "8"
    with pytest.raises(ApiServerError, match="the claim has changed") as caught:
        write_status(api, NAME, STATE, counts_bytes=True)
    assert caught.value.status == 409
    assert (len(server.seen), picky.put) == (6, [])


@pytest.mark.parametrize(
    ("status", "refusal"), [(422, 'requires resource="resourceclaims/driver"'), (403, "cannot patch"), (503, "later")]
)
def test_another_refusal_of_a_patch_is_an_error(
    server: Server, picky: Picky, api: ApiServer, status: int, refusal: str
) -> None:
    picky.status, picky.refusal = status, refusal
    with pytest.raises(ApiServerError, match=refusal):
        write_status(api, NAME, STATE, counts_bytes=False)
    assert picky.put == []


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"metadata": None},
        {"metadata": {"uid": NAME.uid}},
        {"metadata": {"uid": NAME.uid}, "status": 1},
        {"metadata": {"uid": NAME.uid}, "status": {"devices": [1]}},
        {"metadata": {"uid": NAME.uid}, "status": {"allocation": {"devices": {"results": [{}]}}}},
    ],
)
def test_a_claim_of_another_form_is_an_error_of_the_api_server(server: Server, api: ApiServer, told: object) -> None:
    server.answer = lambda handler, _: send(handler, 200, told)
    with pytest.raises(ApiServerError, match="the API server's answer is no ResourceClaim"):
        write_status(api, NAME, STATE, counts_bytes=False)
    assert methods(server) == [("GET", "rails")]
