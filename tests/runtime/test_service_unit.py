"""The daemon with no more capabilities than its unit leaves it: a pod gets its devices, and the host has them back."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import described_mac, host_link, look
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime
from tests.rig.scrape import ask, free_port, scrape
from tests.rig.unit_file import OPTIONS, privileges

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
NUMBERS = {"CAP_DAC_OVERRIDE": 1, "CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
"""Of include/uapi/linux/capability.h."""
SYSCTL = Path("/proc/sys/net/ipv4/conf/rail2/rp_filter")


@pytest.fixture
def service(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    with Daemon(runtime, node, inside=privileges()) as running:
        yield running


def test_a_pod_gets_its_device_and_the_host_has_it_back_with_its_sysctls(
    host_equal: None, node: Fabric, cri: Cri, service: Daemon
) -> None:
    before = SYSCTL.read_text()
    SYSCTL.write_text("2")
    try:
        pod = cri.run_pod("unit", annotations={POD: "- {match: {device: mlx5_2}}"})
        seen = look(cri, cri.run_container(pod, "main"))
        assert seen.macs["rdma0"] == described_mac(node, "rail2")
        assert host_link("rail2") is None
        cri.delete_pod(pod)
        service.wait_given_back()
        assert host_link("rail2") is not None
        assert SYSCTL.read_text() == "2\n"
    finally:
        SYSCTL.write_text(before)
    assert " error " not in service.log


@pytest.mark.every_runtime
def test_the_leftovers_of_a_refused_pod_are_removed(
    host_equal: None, runtime: Runtime, cri: Cri, service: Daemon
) -> None:
    if not runtime.release.leaves_refused_pods:
        pytest.skip(f"{runtime.release.name} leaves nothing of a refused pod; containerd 2.1 does")
    with pytest.raises(CriError, match="DEVICES-EXHAUSTED"):
        cri.run_pod("refused", annotations={POD: "- {count: 9}"})
    service.stop()  # it looks for them once more before it ends
    assert "removed what containerd left of a refused sandbox" in service.log


def test_it_has_these_capabilities_and_no_way_to_others(service: Daemon) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{service.pid}/status").read_text().splitlines())
    names = OPTIONS["CapabilityBoundingSet"][0].split()
    assert int(status["CapEff"], 16) == sum(1 << NUMBERS[name] for name in names)
    assert status["NoNewPrivs"] == "1"


def test_it_serves_metrics_on_a_port_that_needs_no_capability(host_equal: None, runtime: Runtime, node: Fabric) -> None:
    port = free_port()
    flags = (*EXCLUSIVE_FIRST, "--metrics-address", f"127.0.0.1:{port}")
    with Daemon(runtime, node, inside=privileges(), extra=flags) as daemon:
        assert ask(port, "/healthz").text == "ok\n"
        assert daemon.status()["metrics"]["error"] == ""
        assert scrape(port).value("process_start_time_seconds") > 0


PRIVILEGED_PORTS = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


@pytest.mark.skipif(int(PRIVILEGED_PORTS.read_text()) <= 80, reason="this host lets everybody have port 80")
def test_a_port_below_1024_is_refused_by_the_kernel_and_told(host_equal: None, runtime: Runtime, node: Fabric) -> None:
    flags = (*EXCLUSIVE_FIRST, "--metrics-address", "127.0.0.1:80")
    with Daemon(runtime, node, inside=privileges(), extra=flags) as daemon:
        assert daemon.status()["metrics"]["error"] == "127.0.0.1:80: Permission denied"


def test_it_can_open_the_namespace_of_a_process_that_is_not_root_s() -> None:
    """Runtimes may name a pod's namespace /proc/PID/ns/net; a pause process is not root's."""
    nobody = ("setpriv", "--reuid", "65535", "--regid", "65535", "--clear-groups", "sleep", "60")
    with subprocess.Popen(nobody) as process:
        try:
            wait_until(lambda: Path(f"/proc/{process.pid}").stat().st_uid == 65535, "the process to be another user's")
            done = subprocess.run([*privileges(), "readlink", f"/proc/{process.pid}/ns/net"], check=False)
            assert done.returncode == 0
        finally:
            process.kill()
