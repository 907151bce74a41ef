"""A daemon in a container that is not privileged: /proc/sys is read-only there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import PROJECT, Daemon
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: exclusive}]"}
_READ_ONLY = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
READ_ONLY = ("unshare", "--mount", "--propagation=slave", "sh", "-ec", _READ_ONLY, "sh")
NO_PROCFS = (*READ_ONLY, sys.executable, "-m", "tests.rig.no_mounts")
"""Besides, a seccomp filter that refuses fsopen, as container runtimes have one without CAP_SYS_ADMIN."""
SYSCTL = Path("/proc/sys/net/ipv4/conf/rail3/rp_filter")


@pytest.fixture
def propagated(runtime: Runtime) -> Iterator[None]:
    """The runtime's mounts reach mount namespaces that are made from now on, as those of a container's hostPath."""
    place = runtime.run
    while not place.is_mount():
        place = place.parent
    subprocess.run(["mount", "--make-shared", str(place)], check=True)
    yield
    subprocess.run(["mount", "--make-private", str(place)], check=True)


def test_a_netdev_gets_its_sysctls_back_although_proc_sys_is_read_only(
    host_equal: None, runtime: Runtime, propagated: None, node: Fabric, cri: Cri
) -> None:
    before = SYSCTL.read_text()
    other = "1\n" if before != "1\n" else "2\n"
    SYSCTL.write_text(other)
    try:
        with Daemon(runtime, node, inside=READ_ONLY) as daemon:
            assert doctor(daemon)[0] == "ok"
            pod = cri.run_pod("asks", annotations=ASKS)
            cri.start(cri.create_container(pod, "main"))
            assert not SYSCTL.exists()
            cri.delete_pod(pod)
            assert SYSCTL.read_text() == other
    finally:
        SYSCTL.write_text(before)


def test_a_pod_is_refused_where_its_netdevs_sysctls_could_not_be_restored(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, node, inside=NO_PROCFS) as daemon:
        result, fix = doctor(daemon)
        assert (result, "privileged" in fix) == ("problem", True)
        with pytest.raises(CriError) as refused:
            cri.run_pod("asks", annotations=ASKS)
        assert "nri-rdma: DEVICE-IN-USE: mlx5_3 is in use by the host: rail3 could not get its sysctls back: " in (
            refused.value.text
        )
        assert SYSCTL.exists()


def doctor(daemon: Daemon) -> tuple[str, str]:
    """The result and the fix of doctor's check, run where the daemon runs and with its filter."""
    flags = ["--state-dir", str(daemon.state_dir), "-o", "json"]
    command = ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", f"--wd={PROJECT}", sys.executable, "-m", "nri_rdma"]
    filtered = Path(f"/proc/{daemon.pid}/status").read_text()
    if "Seccomp:\t2" in filtered:
        command[3:3] = [sys.executable, "-m", "tests.rig.no_mounts"]
    done = subprocess.run([*command, "doctor", *flags], cwd=PROJECT, capture_output=True, text=True, check=False)
    (check,) = (it for it in json.loads(done.stdout)["checks"] if it["check"] == "sysctls")
    return check["result"], check["fix"]
