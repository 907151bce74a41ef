"""A daemon that does not see the mounts of the runtime, as in a container without propagation, says what to do."""

import json
import subprocess
import sys

import pytest

from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import PROJECT, Daemon
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}}]"}
PRIVATE = ("unshare", "--mount", "--propagation=private")


def test_a_pod_is_refused_with_the_folder_that_has_to_be_mounted(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, node, inside=PRIVATE) as daemon:
        with pytest.raises(CriError) as refused:
            start(cri)
        assert "nri-rdma: ATTACH-FAILED: " in refused.value.text
        assert f"Next: if the daemon runs in a container, mount {runtime.run}/" in refused.value.text
        assert "/netns into it with mountPropagation: HostToContainer; " in refused.value.text
        plain = cri.run_pod("plain")
        result, fix = doctor(runtime, daemon)
        cri.delete_pod(plain)
        assert result == "problem"
        assert f"mount hostPath {runtime.run}/" in fix


def test_a_daemon_that_has_the_runtimes_mounts_attaches_and_doctor_says_so(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, node, inside=("unshare", "--uts")) as daemon:
        pod = start(cri)
        assert doctor(runtime, daemon) == ("ok", "")
        cri.delete_pod(pod)


def start(cri: Cri) -> Sandbox:
    """A pod with a container; the error of whichever is refused."""
    pod = cri.run_pod("asks", annotations=ASKS)
    cri.start(cri.create_container(pod, "main"))
    return pod


def doctor(runtime: Runtime, daemon: Daemon) -> tuple[str, str]:
    """The result and the fix of doctor's check, run where the daemon runs."""
    command = ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", f"--wd={PROJECT}", sys.executable, "-m", "nri_rdma"]
    flags = ["--nri-socket", str(runtime.nri_socket), "--state-dir", str(daemon.state_dir), "-o", "json"]
    done = subprocess.run([*command, "doctor", *flags], cwd=PROJECT, capture_output=True, text=True, check=False)
    (check,) = (it for it in json.loads(done.stdout)["checks"] if it["check"] == "mounts")
    return check["result"], check["fix"]
