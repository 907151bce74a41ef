"""Pods that are refused leave nothing in the runtime: no process, and no record with which it cannot start again."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.rig import cache
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime(differs=True)]

UID = "5d0c3c1e-1111-4000-8000-00000000000b"
ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_0}}]"}
WRONG = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_99}}]"}
CLEANED_S = 60
"""The daemon tries 1 s after a refusal, then 5 s and 15 s after a try that failed: on a busy disk containerd takes more
than the 10 s that each may."""


@pytest.fixture
def older(runtime: Runtime, cri: Cri) -> set[str]:
    """What the runtime has of sandboxes of the tests before, which end their daemons at any moment."""
    return _left(runtime)


def test_a_pod_that_was_refused_twice_and_then_admitted_survives_a_restart_of_the_runtime(
    host_equal: None, older: set[str], runtime: Runtime, daemon: Daemon, cri: Cri
) -> None:
    """As the kubelet does it: the same name, uid and attempt each time."""
    holder = cri.run_pod("holder", annotations=ASKS)
    cri.run_container(holder, "main")
    for _ in range(2):
        with pytest.raises(CriError, match="nri-rdma: DEVICE"):
            _run_late(cri)
    cri.delete_pod(holder)
    late = _run_late(cri)
    cri.run_container(late, "main")
    _wait_cleaned(runtime, older, daemon)

    runtime.restart()
    daemon.wait_synchronized(times=2)

    assert [pod.id for pod in runtime.cri.pods()] == [late.id]
    assert _left(runtime) <= older
    runtime.cri.delete_pod(late)
    # containerd reports no end of a pod that is older than itself: the daemon notices it, and must not end before.
    wait_until(lambda: daemon.status()["sandboxes"] == [], "the late pod's device to be returned")


def _run_late(cri: Cri) -> Sandbox:
    """Start the pod as the kubelet does: it first removes a refused one that the runtime could not clean up by itself.

    containerd 2.2 and newer list such a sandbox as not ready and keep its name for it. The name can be taken a moment
    longer than that, so ask again.
    """
    until = time.monotonic() + CLEANED_S
    while True:
        for refused in [pod for pod in cri.pods() if pod.name == "late"]:
            cri.delete_pod(refused)
        try:
            return cri.run_pod("late", annotations=ASKS, uid=UID)
        except CriError as error:
            if "is reserved for" not in error.text or time.monotonic() > until:
                raise
        time.sleep(0.1)


def test_a_daemon_that_ends_right_after_a_refusal_cleans_up_first(
    host_equal: None, older: set[str], runtime: Runtime, daemon: Daemon, cri: Cri
) -> None:
    with pytest.raises(CriError, match="nri-rdma: DEVICE"):
        cri.run_pod("wrong", annotations=WRONG)
    daemon.end(signal.SIGTERM)
    # The daemon is gone, and nobody else cleans up; the shim that it has ended may take a moment to exit.
    _wait_cleaned(runtime, older, daemon, 5)


def test_what_a_killed_daemon_refused_is_cleaned_up_by_the_next_one(
    host_equal: None, older: set[str], runtime: Runtime, daemon: Daemon, cri: Cri
) -> None:
    with pytest.raises(CriError, match="nri-rdma: DEVICE"):
        cri.run_pod("wrong", annotations=WRONG)
    daemon.kill()
    assert _left(runtime) - older or not runtime.release.leaves_refused_pods
    daemon.start()
    _wait_cleaned(runtime, older, daemon)


def test_a_pod_that_runs_because_our_refusal_came_too_late_is_left_alone(
    host_equal: None, older: set[str], runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    """containerd drops a plugin that does not answer in time, and goes on without it."""
    with Daemon(runtime, node) as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            pod = cri.run_pod("wrong", annotations=WRONG)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        wait_until(lambda: "DEVICE" in daemon.log, lambda: f"the refusal; the daemon's log:\n{daemon.log}")
        daemon.wait_synchronized(times=2)
        if runtime.release.leaves_refused_pods:  # the next one's turn is after that of the first
            with pytest.raises(CriError, match="nri-rdma: DEVICE"):
                cri.run_pod("next", annotations=WRONG)
            _wait_cleaned(runtime, older, daemon)
        assert cri.pod_status(pod).ready
        cri.delete_pod(pod)


@pytest.mark.usefixtures("host_equal")
def test_the_doctor_sees_that_containerd_can_be_asked(runtime: Runtime, daemon: Daemon) -> None:
    sockets = ("--nri-socket", str(runtime.nri_socket), "--containerd-socket", str(runtime.cri_address))
    done = daemon.cli("doctor", *sockets, "-o", "json")
    (found,) = [it for it in json.loads(done.stdout)["checks"] if it["check"] == "containerd"]
    assert found["result"] == ("ok" if runtime.release.leaves_refused_pods else "n/a"), found


def _wait_cleaned(runtime: Runtime, older: set[str], daemon: Daemon, seconds: float = CLEANED_S) -> None:
    wait_until(
        lambda: _left(runtime) <= older,
        lambda: f"the end of {_left(runtime) - older}; the daemon's log:\n{daemon.log}",
        seconds,
    )


def _left(runtime: Runtime) -> set[str]:
    """What the runtime has of sandboxes and containers beyond what CRI lists: records, processes, files of theirs."""
    cri = runtime.cri
    listed = {pod.id for pod in cri.pods()} | {container.id for container in cri.containers()}
    kinds = {"record": _recorded(runtime), "mount": _mounted(runtime), "process": _running(runtime)}
    return {f"{kind} of {id_}" for kind, ids in kinds.items() for id_ in ids - listed}


def _recorded(runtime: Runtime) -> set[str]:
    """The ids of containerd's own records; others have none."""
    if not isinstance(runtime, Containerd):
        return set()
    command = (str(cache.CTR), "-a", str(runtime.cri_address), "-n", "k8s.io", "containers", "list", "-q")
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def _mounted(runtime: Runtime) -> set[str]:
    """The ids of sandboxes that have a mount below the runtime's state, such as their /dev/shm."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {
        Path(point).parent.name
        for point in points
        if point.startswith(f"{runtime.run}/state/") and "/sandboxes/" in point
    }


def _running(runtime: Runtime) -> set[str]:
    """The ids that the command lines of the runtime's shims name."""
    ids = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we read the list
        if "containerd-shim" in words[0] and str(runtime.cri_address) in words:
            ids.add(words[words.index("-id") + 1])
    return ids
