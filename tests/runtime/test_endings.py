"""The ends of pods, and what only looks like one: devices come home when a sandbox ends, and only then."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import hoststate
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import described_mac, host_link, look
from tests.rig.fabric import Fabric
from tests.rig.faults import Faults
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

POD = "rdma.noderesource.dev/pod"
LOOP_S = {True: 60.0, False: 5.0}
"""How long a container crashes again and again, with --every-fault and without."""


def asks(text: str) -> dict[str, str]:
    return {POD: text}


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """No fault yet; the boundaries that the daemon passes are written down."""
    made = Faults(tmp_path / "faults")
    made.plant()
    return made


@pytest.fixture
def watched(runtime: Runtime, node: Fabric, faults: Faults) -> Iterator[Daemon]:
    """A daemon to which they happen."""
    with Daemon(runtime, node, faults=faults) as running:
        yield running


def assert_home(before: hoststate.HostState, daemon: Daemon) -> None:
    """Soon, and then nothing is held."""
    wait_until(lambda: not hoststate.difference(before, hoststate.take()), "the host to be as before")
    daemon.wait_given_back()


def test_three_pods_that_are_deleted_after_a_restart_of_the_runtime_give_everything_back(
    host_equal: None, runtime: Runtime, cri: Cri, daemon: Daemon
) -> None:
    """The runtime tells no end of pods that are older than itself."""
    before = hoststate.take()
    pods = [cri.run_pod(name, annotations=asks("2")) for name in ("a", "b", "c")]
    for pod in pods:
        cri.run_container(pod, "main")
    runtime.restart()
    daemon.wait_synchronized(times=2)
    for pod in pods:
        runtime.cri.delete_pod(pod)
    assert_home(before, daemon)


@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_pod_whose_attach_failed_leaves_status_with_its_end_though_nobody_tells(
    host_equal: None, runtime: Runtime, cri: Cri, watched: Daemon, faults: Faults, is_at_once: bool
) -> None:
    faults.plant("always*after move-netdev=error:EIO")
    pod = cri.run_pod("fails", annotations=asks("1"))
    wait_until(lambda: watched.status()["unserved"], "the failure")
    runtime.kill()
    runtime.start()
    if not is_at_once:
        watched.wait_synchronized(times=2)
        wait_until(lambda: watched.status()["unserved"], "the failure of another attempt")
    runtime.cri.delete_pod(pod)
    watched.wait_synchronized(times=2)
    wait_until(lambda: watched.status()["unserved"] == [], "the pod to be forgotten", 30)
    time.sleep(2)  # an attempt that was under way has ended
    assert watched.status()["unserved"] == []


def test_a_pod_that_runs_without_its_devices_leaves_status_with_its_end_though_nobody_tells(
    host_equal: None, runtime: Runtime, cri: Cri, daemon: Daemon
) -> None:
    daemon.kill()
    pod = cri.run_pod("bare", annotations=asks("1"))
    cri.run_container(pod, "main")
    daemon.start()
    wait_until(lambda: daemon.status()["unserved"], "the report")
    runtime.kill()
    runtime.start()
    daemon.wait_synchronized(times=2)
    assert [it["pod"] for it in daemon.status()["unserved"]] == ["default/bare"]
    runtime.cri.delete_pod(pod)
    wait_until(lambda: daemon.status()["unserved"] == [], "the pod to be forgotten", 30)


def test_containers_that_are_refused_move_nothing_home(
    host_equal: None, node: Fabric, cri: Cri, watched: Daemon, faults: Faults
) -> None:
    """The runtime says at once that such a container stopped and was removed."""
    faults.plant("before configure-netdev mlx5_1=pause")
    pod = cri.run_pod("early", annotations=asks("[{match: {device: mlx5_0}}, {match: {device: mlx5_1}}]"))
    faults.wait_paused()
    for _ in range(3):
        with pytest.raises(CriError, match=r"network is not ready: 1 of 2 devices attached"):
            cri.create_container(pod, "main", retries=False)
    faults.go()
    macs = look(cri, cri.run_container(pod, "main")).macs
    assert {described_mac(node, name) for name in ("rail0", "rail1")} <= set(macs.values())
    assert undone(faults, watched) == []
    cri.delete_pod(pod)


def test_a_container_that_crashes_again_and_again_moves_nothing_home(
    host_equal: None, cri: Cri, watched: Daemon, faults: Faults, pytestconfig: pytest.Config
) -> None:
    pod = cri.run_pod("loop", annotations=asks("- {match: {device: mlx5_2}}"))
    end = time.monotonic() + LOOP_S[pytestconfig.getoption("--every-fault")]
    attempts = 0
    while time.monotonic() < end or attempts < 3:
        container = cri.create_container(pod, "main", ("/bin/false",), attempt=attempts)
        cri.start(container)
        wait_until(lambda: cri.container_status(container).state == "exited", "it to crash")  # noqa: B023 - called here
        assert host_link("rail2") is None
        cri.remove_container(container)
        attempts += 1
    assert undone(faults, watched) == []
    cri.delete_pod(pod)


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "removed without a stop"])
def test_the_end_of_an_older_sandbox_leaves_the_new_one_of_the_same_pod_alone(
    host_equal: None, node: Fabric, cri: Cri, daemon: Daemon, stops: bool
) -> None:
    before = hoststate.take()
    uid = "5d0c3c1e-1111-4000-8000-00000000000a"
    request = asks("- {match: {device: mlx5_3}}")
    first = cri.run_pod("twice", annotations=request, uid=uid)
    cri.run_container(first, "main")
    second = cri.run_pod("twice", annotations=request, uid=uid, attempt=1)
    container = cri.create_container(second, "main", attempt=1)
    cri.start(container)
    given = look(cri, container)
    assert described_mac(node, "rail3") in given.macs.values()
    if stops:
        cri.stop_pod(first)
    cri.remove_pod(first)
    assert look(cri, container) == given
    assert [it["id"] for it in daemon.status()["sandboxes"]] == [second.id]
    cri.delete_pod(second)
    assert_home(before, daemon)


@pytest.mark.parametrize("way", ["stopped twice", "removed without a stop", "its namespace goes first"])
def test_a_pod_gives_everything_back_however_it_ends(host_equal: None, cri: Cri, daemon: Daemon, way: str) -> None:
    before = hoststate.take()
    pod = cri.run_pod("ends", annotations=asks("2"))
    cri.run_container(pod, "main")
    match way:
        case "stopped twice":
            cri.stop_pod(pod)
            cri.stop_pod(pod)
        case "its namespace goes first":
            netns = netns_of(cri, pod)
            subprocess.run(["umount", "--lazy", str(netns)], check=True)
            netns.unlink()
            assert_home(before, daemon)
            cri.stop_pod(pod)
    cri.remove_pod(pod)
    assert_home(before, daemon)


def netns_of(cri: Cri, pod: Sandbox) -> Path:
    netns = cri.pod_status(pod).netns
    assert netns is not None
    return netns


def undone(faults: Faults, daemon: Daemon) -> list[str]:
    """The steps that the daemon undid."""
    places = faults.places(daemon.pid)
    assert any(place.startswith("after move-netdev") for place in places), "what is looked at is there"
    return [place for place in places if "undo" in place]
