"""Others who give a container devices too: what we see of them, and what we say."""

import logging

import pytest

from nri_rdma.doors.control import attachments
from nri_rdma.doors.control.client import ask_status
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.doors.nri.door import SOON, Door, connected, create, door, make_pod

__all__ = ["door"]

OURS = "/dev/infiniband/uverbs3"
"""The node of the device that the pod asks for, 231:195."""


def _create_with(runtime: FakeRuntime, pod: nri.PodSandbox, major: int, minor: int) -> list[str]:
    """The nodes that are added to a container that somebody has given one at our path already."""
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.devices.add(path=OURS, type="c", major=major, minor=minor)
    return [device.path for device in runtime.create_container(pod, container).adjust.linux.devices]


def _started(door: Door) -> tuple[FakeRuntime, nri.PodSandbox]:
    runtime = connected(door)
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    return runtime, pod


def _start(runtime: FakeRuntime, pod: nri.PodSandbox) -> None:
    runtime.start_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))


def _unstarted(door: Door) -> list[dict[str, object]]:
    (sandbox,) = ask_status(door.inside.settings.control_path)["sandboxes"]
    found: list[dict[str, object]] = sandbox["unstarted"]
    return [{"container": it["container"], "answers": it["answers"]} for it in found]


def test_another_rdma_device_at_our_path_is_refused_with_both_numbers(door: Door) -> None:
    runtime, pod = _started(door)
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
    runtime, pod = _started(door)
    with caplog.at_level(logging.WARNING):
        assert OURS in _create_with(runtime, pod, 510, 3)
    (record,) = [it for it in caplog.records if it.message == "a device node of the container is replaced by ours"]
    assert (record.__dict__["theirs"], record.__dict__["ours"]) == ("510:3", "231:195")
    runtime.close()


def test_an_equal_node_is_left_to_whoever_put_it_there(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime, pod = _started(door)
    with caplog.at_level(logging.WARNING):
        assert _create_with(runtime, pod, 231, 195) == ["/dev/infiniband/rdma_cm"]
    assert "replaced" not in caplog.text
    runtime.close()


def test_a_container_that_nobody_starts_is_told_when_it_is_asked_for_again(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """All that we see of a conflict with a plugin after us: the runtime refuses the container, and asks again."""
    runtime, pod = _started(door)
    with caplog.at_level(logging.WARNING):
        create(runtime, pod)
        assert _unstarted(door) == []
        for _ in range(3):
            create(runtime, pod)
    told = [record for record in caplog.records if "did not start after our last answer" in record.message]
    assert [(record.__dict__["pod"], record.__dict__["container"]) for record in told] == [("default/one", "main")]
    assert _unstarted(door) == [{"container": "main", "answers": 4}]
    shown = nri_rdma("status", "--state-dir", door.inside.settings.state_dir, columns=120).stdout
    assert "WARNING: containers that did not start after our answer; the pod's events say who refused them" in shown
    _start(runtime, pod)
    assert _unstarted(door) == []
    runtime.close()


def test_a_container_that_crashes_and_starts_again_is_no_news(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime, pod = _started(door)
    for _ in range(3):
        create(runtime, pod)
        _start(runtime, pod)
    assert "did not start" not in caplog.text
    runtime.close()


def test_a_container_that_waits_long_for_its_start_is_shown(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, pod = _started(door)
    create(runtime, pod)
    monkeypatch.setattr(attachments, "UNSTARTED_S", -1.0)
    assert _unstarted(door) == [{"container": "main", "answers": 1}]
    runtime.close()


def test_containers_of_a_list_of_pods_wait_for_no_start(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, pod = _started(door)
    runtime.pods, runtime.containers = [pod], [nri.Container(id="c", pod_sandbox_id=pod.id, name="main")]
    runtime.disconnect()
    runtime.accept(SOON)
    wait_until(lambda: len(door.facts) == 2, "the list")
    monkeypatch.setattr(attachments, "UNSTARTED_S", -1.0)
    assert _unstarted(door) == []
    runtime.close()
