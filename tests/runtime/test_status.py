"""What status says of a real runtime's pods: refused ones, and those of a daemon that was restarted."""

import os
import signal
import time
from pathlib import Path

import pytest

from nri_rdma.daemon.past import PAUSE_S
from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime
from tests.runtime.test_placement import nvidia_node

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

POD = "rdma.noderesource.dev/pod"
TWO = "[{match: {device: mlx5_0}}, {match: {device: mlx5_1}}]"


def test_a_refused_pod_is_in_log_and_status_after_it_is_gone(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, node) as daemon:
        with pytest.raises(CriError):
            cri.run_pod("greedy", annotations={POD: "99"})
        (line,) = [it for it in daemon.log.splitlines() if " refused " in it]
        assert 'call="RunPodSandbox" pod="default/greedy" uid=' in line
        assert 'code="DEVICES-EXHAUSTED"' in line
        assert "default/greedy" in daemon.cli("status").stdout
        (row,) = daemon.status()["refused"]
        assert (row["pod"], row["code"], row["count"]) == ("default/greedy", "DEVICES-EXHAUSTED", 1)
        assert daemon.cli("status", "--check").returncode == 0
        assert daemon.cli("trace", "--errors").stdout.startswith("RunPodSandbox  default/greedy")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_daemon_did_is_told_by_the_one_after_it(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, how: signal.Signals
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("trainer", annotations={POD: TWO})
        cri.run_container(pod, "main")
        with pytest.raises(CriError):
            cri.run_pod("greedy", annotations={POD: "99"})
        before, refused = daemon.cli("trace", "default/trainer").stdout, daemon.status()["refused"]
        time.sleep(2 * PAUSE_S)  # the last moment of a daemon that is killed is lost
        daemon.end(how)
        daemon.start()
        after = daemon.cli("trace", "default/trainer").stdout
        assert before.partition("The daemon remembers")[0] in after
        assert "move-netdev" in after
        assert "older steps are those of a daemon before it" in after
        assert daemon.status()["refused"] == refused
        assert "RunPodSandbox  default/greedy" in daemon.cli("trace", "--errors").stdout
        cri.delete_pod(pod)
        wait_until(lambda: daemon.status()["sandboxes"] == [], "the devices to be back")


def test_a_restarted_daemon_knows_what_its_pods_have_from_it(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("trainer", annotations={POD: TWO})
        container = cri.run_container(pod, "main", devices=[nvidia_node(tmp_path, 0)])
        assert {"uverbs0", "uverbs1"} <= set(look(cri, container).nodes)
        wait_until(lambda: daemon.status()["alignment"], "the container to be compared")
        before = daemon.status()
        for how in (signal.SIGTERM, signal.SIGKILL):
            daemon.end(how)
            daemon.start()
            wait_until(lambda: daemon.status()["alignment"] == before["alignment"], "the containers to be compared")
            after = daemon.status()
            assert (after["from_others"], after["unserved"]) == ([], [])
        cri.delete_pod(pod)
        wait_until(lambda: daemon.status()["sandboxes"] == [], "the devices to be back")


def test_a_daemon_that_is_stopped_is_late_and_not_absent(host_equal: None, runtime: Runtime, node: Fabric) -> None:
    with Daemon(runtime, node) as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            done = daemon.cli("status", "--check")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert (done.returncode, done.stdout.split(":")[1]) == (1, " DAEMON-LATE")
        assert daemon.cli("status", "--check").returncode == 0
