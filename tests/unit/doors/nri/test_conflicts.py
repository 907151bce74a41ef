"""Others who give a container devices too: what we see of them, and what we say."""

import logging

import pytest

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.unit.doors.nri.door import Door, create, door, started

__all__ = ["door"]

OURS = "/dev/infiniband/uverbs3"
"""The node of the device that the pod asks for, 231:195."""


def _create_with(runtime: FakeRuntime, pod: nri.PodSandbox, major: int, minor: int) -> list[str]:
    """The nodes that are added to a container that somebody has given one at our path already."""
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.devices.add(path=OURS, type="c", major=major, minor=minor)
    return [device.path for device in runtime.create_container(pod, container).adjust.linux.devices]


def test_another_rdma_device_at_our_path_is_refused_with_both_numbers(door: Door) -> None:
    runtime, pod = started(door)
    with pytest.raises(RpcError) as refused:
        _create_with(runtime, pod, 231, 193)
    assert refused.value.message.startswith(
        f"nri-rdma: PATH-CONFLICT: {OURS} of the container is 231:193 already, /dev/infiniband/uverbs1 of mlx5_1;"
        " this pod's is 231:195, default/one, container main. Next: "
    )
    assert refused.value.code == Code.FAILED_PRECONDITION
    assert len(create(runtime, pod).adjust.linux.devices) == 2
    runtime.close()


def test_numbers_that_are_nobodys_are_put_right_with_a_word(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime, pod = started(door)
    with caplog.at_level(logging.WARNING):
        assert OURS in _create_with(runtime, pod, 510, 3)
    (record,) = [it for it in caplog.records if it.message == "a device node of the container is replaced by ours"]
    assert (record.__dict__["theirs"], record.__dict__["ours"]) == ("510:3", "231:195")
    runtime.close()


def test_an_equal_node_is_left_to_whoever_put_it_there(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime, pod = started(door)
    with caplog.at_level(logging.WARNING):
        assert _create_with(runtime, pod, 231, 195) == ["/dev/infiniband/rdma_cm"]
    assert "replaced" not in caplog.text
    runtime.close()
