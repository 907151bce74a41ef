"""Calls that overlap, end early or come again for another allocation: the answer is about what is allocated now."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.doors.dra.dra_server import DraServer
from nri_rdma.model.pod import Pod
from nri_rdma.pb import dra_pb2 as dra
from tests.rig.deadline import wait_until
from tests.rig.dial import dial
from tests.unit.doors.dra.claimed import OURS, PATH, PREPARE, UNPREPARE, Claimed, asked, call, kubelet_folder

SPEC = f"{OURS}-claim-u1.json"
ALONE = {OURS: "[{match: {device: mlx5_2}, mode: exclusive}]"}


@pytest.fixture
def holder(node: Claimed) -> Pod:
    """The pod that still has the claim's device."""
    node.serve_annotations()
    return node.daemon.start_pod("holder", ALONE)


@pytest.fixture
def served(node: Claimed, holder: Pod) -> Iterator[Path]:
    """The socket of a driver with a claim that waits for its device."""
    node.serve_claims()
    node.allocate("mlx5_2")
    with kubelet_folder() as made:
        server = DraServer(made / "plugins", node.preparer, lambda: None, node.daemon.spans)
        server.serve()
        yield made / "plugins" / OURS / "dra.sock"
        server.close()


@contextmanager
def begun(socket: Path, *claims: tuple[str, str], seconds: float = 20) -> Iterator[Any]:
    """A call of NodePrepareResources that is under way; its end is the kubelet's."""
    with dial(socket) as channel:
        future = channel.unary_unary(PREPARE).future(asked(dra.NodePrepareResourcesRequest, *claims), timeout=seconds)
        yield future
        future.cancel()


def answer(future: Any) -> dra.NodePrepareResourcesResponse:
    return dra.NodePrepareResourcesResponse.FromString(future.result(timeout=20))


def devices(node: Claimed, name: str = SPEC) -> list[str]:
    """The uverbs nodes that the claim's spec gives."""
    told = json.loads((node.folder / name).read_text())["devices"]
    return [it["path"] for device in told for it in device["containerEdits"]["deviceNodes"] if "uverbs" in it["path"]]


def unprepare(socket: Path) -> None:
    call(socket, UNPREPARE, asked(dra.NodeUnprepareResourcesRequest, ("rails", "u1")))


def asks_the_api_server(node: Claimed, times: int) -> None:
    wait_until(lambda: len(node.seen) >= times, "the question to the API server")


@pytest.mark.parametrize("gives_up", [True, False], ids=["cancelled", "not cancelled"])
def test_a_claim_that_was_unprepared_while_it_waited_has_the_device_of_its_next_allocation(
    served: Path, node: Claimed, holder: Pod, gives_up: bool
) -> None:
    with begun(served, ("rails", "u1")) as earlier:
        asks_the_api_server(node, 1)
        time.sleep(0.3)  # it waits for the device
        if gives_up:
            earlier.cancel()
        unprepare(served)
        node.daemon.stop_pod(holder)
        time.sleep(0.5)
        assert node.specs == []
        node.allocate("mlx5_3")
        with begun(served, ("rails", "u1")) as later:
            (told,) = answer(later).claims["u1"].devices
        assert told.device_name == node.told[PATH]["status"]["allocation"]["devices"]["results"][0]["device"]
        assert devices(node) == ["/dev/infiniband/uverbs3"]


def test_a_call_that_the_kubelet_gave_up_writes_nothing(served: Path, node: Claimed, holder: Pod) -> None:
    with begun(served, ("rails", "u1")):
        asks_the_api_server(node, 1)
        time.sleep(0.3)  # it waits for the device
    node.daemon.stop_pod(holder)
    time.sleep(0.5)
    assert node.specs == []


def test_a_call_is_answered_with_the_reason_before_the_kubelet_gives_it_up(served: Path, node: Claimed) -> None:
    began = time.monotonic()
    with begun(served, ("rails", "u1"), seconds=4) as waiting:
        assert "mlx5_2 is still held by another pod" in answer(waiting).claims["u1"].error
    assert 0.9 < time.monotonic() - began < 3


@pytest.mark.parametrize("change", ["device", "mode"])
def test_a_claim_that_is_allocated_otherwise_is_prepared_anew(served: Path, node: Claimed, change: str) -> None:
    node.allocate("mlx5_3")
    with begun(served, ("rails", "u1")) as first:
        answer(first)
    before = (node.folder / SPEC).read_text()
    if change == "device":
        node.allocate("mlx5_5")
    else:
        parameters = {"driver": OURS, "parameters": {"mode": "shared"}}
        node.told[PATH]["status"]["allocation"]["devices"]["config"] = [{"source": "FromClass", "opaque": parameters}]
    with begun(served, ("rails", "u1")) as second:
        assert not answer(second).claims["u1"].error
    assert (node.folder / SPEC).read_text() != before
    assert devices(node) == ["/dev/infiniband/uverbs5" if change == "device" else "/dev/infiniband/uverbs3"]


def test_sixteen_calls_that_wait_for_one_claim_keep_no_other_claim_waiting(
    served: Path, node: Claimed, holder: Pod
) -> None:
    other = PATH.replace("team/", "other/")
    with ExitStack() as stack:
        waiting = [stack.enter_context(begun(served, ("rails", "u1"))) for _ in range(16)]
        asks_the_api_server(node, 1)
        time.sleep(0.3)
        held = dict(node.told[PATH])
        node.allocate("mlx5_3", uid="u2")
        node.told[other], node.told[PATH] = node.told[PATH], held
        node.told[other]["metadata"]["namespace"] = "other"
        before, threads = time.monotonic(), threading.active_count()
        with dial(served) as channel:
            claim = dra.Claim(namespace="other", name="rails", uid="u2")
            data = channel.unary_unary(PREPARE)(
                dra.NodePrepareResourcesRequest(claims=[claim]).SerializeToString(), timeout=20
            )
        took = time.monotonic() - before
        assert dra.NodePrepareResourcesResponse.FromString(data).claims["u2"].error == ""
        assert took < 10
        cpu = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - cpu < 0.1
        assert threads - threading.active_count() < 3
        node.daemon.stop_pod(holder)
        assert {answer(it).claims["u1"].error for it in waiting} == {""}
