"""On a host with podman and nothing else, everything is green while the daemon lives, and says so when it does not."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.oci.host import Host, Podman, nri_rdma
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.scrape import ask, free_port

SLEEP = ("sleep", "1000")

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]


NIC = "rdma.noderesource.dev/nic"


class InsideHost:
    """A daemon with the files of the host, as its service manager starts it, and commands with its settings."""

    def __init__(self, host: Host, node: Fabric) -> None:
        self.host, self.port = host, free_port()
        hardware = ("--sysfs-root", str(node.sysfs), "--dev-root", str(node.dev))
        self._asking = ("--state-dir", "/run/nri-rdma")
        self._examining = (*self._asking, "--nri-socket", "/run/nri/nri.sock", *hardware)
        metrics = ("--metrics-address", f"127.0.0.1:{self.port}")
        proc = ("--proc-root", str(node.proc))
        self.process = host.start(*nri_rdma("run", *self._examining, *metrics, *proc))
        wait_until(lambda: self.check().stdout == "", lambda: f"the daemon to be well: {self.check().stdout}", 15)

    def check(self) -> subprocess.CompletedProcess[str]:
        return self.host.nri_rdma("status", "--check", *self._asking)

    def status(self) -> str:
        return self.host.nri_rdma("status", *self._asking).stdout

    def doctor(self) -> tuple[int, dict[str, str]]:
        """Its exit code, and the result of each check."""
        done = self.host.nri_rdma("doctor", "-o", "json", *self._examining)
        return done.returncode, {it["check"]: it["result"] for it in json.loads(done.stdout)["checks"]}

    def kill(self) -> None:
        """SIGKILL; again is no error."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def daemon(host: Host, node: Fabric) -> Iterator[InsideHost]:
    """A daemon that runs on the host."""
    running = InsideHost(host, node)
    yield running
    running.kill()


def test_all_is_green_while_the_daemon_lives_and_red_when_it_is_dead(host_equal: None, daemon: InsideHost) -> None:
    assert daemon.check().returncode == 0
    assert "Runtime      not needed: there is no runtime with NRI here, and our hook serves podman\n" in daemon.status()
    code, results = daemon.doctor()
    assert (code, results["NRI socket"], results["daemon"], results["guard"]) == (0, "ok", "ok", "ok")
    assert ask(daemon.port, "/healthz").status == 200
    assert "nri_rdma_runtime_synchronized 1.0\n" in ask(daemon.port, "/metrics").text
    daemon.kill()
    done = daemon.check()
    assert (done.returncode, done.stdout.split(":")[1]) == (1, " DAEMON-ABSENT")
    code, results = daemon.doctor()
    assert (code, results["NRI socket"], results["daemon"]) == (1, "ok", "problem")


def test_one_command_sets_up_annotations_and_cdi_devices(
    host_equal: None, host: Host, node: Fabric, podman: Podman, daemon: InsideHost
) -> None:
    for other in host.cdi_dir.iterdir():  # where `cdi generate` has made the devices, install makes none
        other.unlink()
    flags = ("--sysfs-root", str(node.sysfs), "--dev-root", str(node.dev))
    spec = host.cdi_dir / "nri-rdma-podman.json"
    shown = host.nri_rdma("install", "podman", "--dry-run", *flags).stdout
    assert f"+++ /etc/cdi/{spec.name}" in shown
    assert len(shown.splitlines()) < 10
    for words in ("podman is set up. ", "podman is set up already; nothing was changed."):
        done = host.nri_rdma("install", "podman", *flags)
        assert (done.returncode, words in done.stdout) == (0, True), done.stderr
    seen = podman.must(*podman.run("--rm", "--device", f"{NIC}=all", command=["env"]))
    assert {f"RDMA_DEVICES_MLX5_{number}=mlx5_{number}" for number in range(8)} <= {*seen.split()}
    done = host.nri_rdma("uninstall", "podman")
    assert (done.returncode, spec.exists()) == (0, False), done.stderr
    assert host.nri_rdma("install", "podman").returncode == 0  # as the other tests have it


def test_a_container_is_shown_and_traced_by_its_name(
    host_equal: None, host: Host, podman: Podman, daemon: InsideHost
) -> None:
    asks = podman.annotation("rdma.noderesource.dev/pod=1")
    podman.must(*podman.run("-d", "--name", "keep", *asks, command=SLEEP))
    try:
        assert "(keep) (shared)" in daemon.status()
        done = host.nri_rdma("trace", "keep", "--state-dir", "/run/nri-rdma")
        assert (done.returncode, "  oci/" in done.stdout.splitlines()[0]) == (0, True), done.stdout
        done = host.nri_rdma("explain", "--podman", "keep", "--state-dir", "/run/nri-rdma")
        assert done.returncode == 0, done.stderr
    finally:
        podman.remove("keep")
