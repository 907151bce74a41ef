"""podman beside the daemon: containers that ask by a CDI spec's hooks open the device, send over it and are limited.

On the machine `systemd` podman has systemd make its cgroups, as on most hosts; elsewhere it makes them itself.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import MACHINE, STATE
from tests.lab.guest.process import Server
from tests.lab.machine import MODELS
from tests.lab.recipe import CHECKOUT
from tests.lab.workload import NAME as WORKLOAD
from tests.oci.podman import POLICY, PodmanOf, configuration
from tests.rig.control import ask_status
from tests.rig.deadline import DeadlineError, wait_until

CDI = Path("/etc/cdi")
HOOK = Path("/usr/local/lib/nri-rdma/nri-rdma-oci-hook")
GENERATE = (
    *(sys.executable, "-m", "nri_rdma", "cdi", "generate", "--hooks", "--sysfs-root", "/sys", "--dev-root", "/dev"),
    *("--config", str(Path(__file__).with_name("pools.toml")), "--mode", "shared", "--output", str(CDI)),
)
NIC, LIMITED = "rdma.noderesource.dev/nic", "rdma.noderesource.dev/nic-default"
OBJECTS = 4
KEEP_SIXTEEN = "cat /sys/fs/cgroup/rdma.max >/tmp/look; exec verbs-probe objects {} 16 >/tmp/got"
_COMMAND_S = 60


class Guest:
    """This machine, as a host of podman."""

    def run_command(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)

    def must(self, *command: str) -> str:
        done = self.run_command(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def specs(daemon: Server) -> Iterator[None]:
    """The hook's two files, and two specs of the machine's devices: without limits, and with them."""
    HOOK.parent.mkdir(parents=True, exist_ok=True)
    for name in ("nri_rdma_oci_hook.py", HOOK.name):
        shutil.copyfile(CHECKOUT / "hooks" / name, HOOK.with_name(name))
    HOOK.chmod(0o755)
    subprocess.run(GENERATE, cwd=CHECKOUT, check=True)
    subprocess.run((*GENERATE, "--pool", "default", "--hca-objects", str(OBJECTS)), cwd=CHECKOUT, check=True)
    yield
    for spec in CDI.glob("rdma.noderesource.dev-*"):
        spec.unlink()


@pytest.fixture(scope="module")
def configured() -> None:
    """podman's configuration, and its image."""
    manager = "systemd" if MODELS[MACHINE].systemd else "cgroupfs"
    Path("/etc/containers").mkdir(exist_ok=True)
    Path("/etc/containers/containers.conf").write_text(configuration(manager))
    Path("/etc/containers/policy.json").write_text(POLICY)
    Guest().must("podman", "load", "-q", "-i", "/usr/lib/lab/images/workload.tar")


@pytest.fixture(params=["crun", "runc"])
def podman(request: pytest.FixtureRequest, configured: None, specs: None) -> Iterator[PodmanOf]:
    """podman with each OCI runtime; no container is left behind."""
    made = PodmanOf(Guest(), request.param, WORKLOAD)
    yield made
    made.remove_all()
    assert ask_status(STATE / "control.sock")["sandboxes"] == []


@pytest.fixture
def machine_equal(configured: None, specs: None) -> Iterator[None]:
    """The machine is as before when the containers are gone."""
    before = kernel.NodeState.take()
    yield
    with suppress(DeadlineError):  # the kernel takes a dead namespace down in its own time
        wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the machine to settle", seconds=20)
    assert before.differences_to(kernel.NodeState.take()) == []


crun_only = pytest.mark.parametrize("podman", ["crun"], indirect=True)


@crun_only
@pytest.mark.outcome("podman-device")
def test_a_container_that_asks_opens_the_shared_device_and_another_has_none(
    machine_equal: None, podman: PodmanOf, rdma_device: str
) -> None:
    look = ("ibv_devinfo", "-d", rdma_device)
    shown = podman(*program(podman, "--rm", "--device", f"{NIC}={rdma_device}", command=look))
    assert shown.returncode == 0, shown.stderr
    assert f"hca_id:\t{rdma_device}" in shown.stdout
    assert "PORT_ACTIVE" in shown.stdout
    assert podman(*program(podman, "--rm", command=look)).returncode != 0


@crun_only
@pytest.mark.outcome("podman-traffic")
def test_two_containers_that_share_a_device_exchange_data(
    machine_equal: None, podman: PodmanOf, rdma_device: str
) -> None:
    device, send_bw = ("--device", f"{NIC}={rdma_device}"), verbs.send_bw(rdma_device, 0)
    podman.must(*program(podman, "-d", "--name", "receiver", *device, command=send_bw, network="podman"))
    state = podman.inspect("receiver")
    verbs.wait_until_listening(state["State"]["Pid"], verbs.PORT)
    address = state["NetworkSettings"]["Networks"]["podman"]["IPAddress"]
    shown = podman.must(*program(podman, "--rm", *device, command=[*send_bw, address], network="podman"))
    verbs.bandwidth_in(shown)
    assert podman.must("wait", "receiver").strip() == "0", "it got all that was sent"


@pytest.mark.machine("small", "systemd")
@pytest.mark.outcome("podman-limits")
def test_the_kernel_refuses_what_is_over_the_limit_and_the_neighbour_is_free(
    machine_equal: None, podman: PodmanOf, rdma_device: str
) -> None:
    keep_sixteen = ("sh", "-c", KEEP_SIXTEEN.format(rdma_device))
    limited, free = (("--device", f"{kind}={rdma_device}") for kind in (LIMITED, NIC))
    podman.must(*program(podman, "-d", "--name", "limited", *limited, command=keep_sixteen))
    assert got(podman, "limited") == f"{OBJECTS} EAGAIN"
    pid = podman.inspect("limited")["State"]["Pid"]
    line = f"{rdma_device} hca_handle=max hca_object={OBJECTS}"
    assert kernel.cgroup_file(pid, "rdma.max") == line
    assert got(podman, "limited", "/tmp/look") == line, "it was there before the program ran"
    assert kernel.cgroup_file(pid, "rdma.current") == f"{rdma_device} hca_handle=1 hca_object={OBJECTS}"
    (use,) = ask_status(STATE / "control.sock")["rdma_use"]
    assert (use["device"], use["hca_object"]) == (rdma_device, {"used": OBJECTS, "limit": OBJECTS})
    podman.must(*program(podman, "-d", "--name", "free", *free, command=keep_sixteen))
    assert got(podman, "free") == "16 OK"


@pytest.fixture(scope="module")
def annotated(configured: None, specs: None) -> Iterator[None]:
    """podman, set up for annotations."""
    command = (sys.executable, "-m", "nri_rdma")
    subprocess.run((*command, "install", "podman"), cwd=CHECKOUT, check=True)
    yield
    subprocess.run((*command, "uninstall", "podman"), cwd=CHECKOUT, check=True)


@pytest.mark.machine("small", "systemd")
def test_a_container_with_an_annotation_opens_the_device_and_is_limited(
    machine_equal: None, podman: PodmanOf, annotated: None, rdma_device: str
) -> None:
    request = f"[{{match: {{device: {rdma_device}}}, mode: shared, limits: {{hcaObjects: {OBJECTS}}}}}]"
    asks = ("--annotation", f"rdma.noderesource.dev/pod={request}")
    shown = podman(*program(podman, "--rm", *asks, command=("ibv_devinfo", "-d", rdma_device)))
    assert shown.returncode == 0, shown.stderr
    assert "PORT_ACTIVE" in shown.stdout
    keep_sixteen = ("sh", "-c", KEEP_SIXTEEN.format(rdma_device))
    podman.must(*program(podman, "-d", "--name", "limited", *asks, command=keep_sixteen))
    assert got(podman, "limited") == f"{OBJECTS} EAGAIN"
    line = f"{rdma_device} hca_handle=max hca_object={OBJECTS}"
    assert got(podman, "limited", "/tmp/look") == line, "it was there before the program ran"


@crun_only
@pytest.mark.machine("systemd")
@pytest.mark.outcome("podman-limits")
def test_a_container_of_a_service_is_limited_in_the_cgroup_of_that_service(
    machine_equal: None, podman: PodmanOf, rdma_device: str
) -> None:
    """As Quadlet has it: `--cgroups=split` puts the container below its unit."""
    device, split = ("--device", f"{LIMITED}={rdma_device}"), ("--cgroups=split", "--sdnotify=conmon")
    keep_sixteen = ("sh", "-c", KEEP_SIXTEEN.format(rdma_device))
    unit = ("systemd-run", "--unit=quadlet", "--service-type=notify", "-p", "NotifyAccess=all", "-p", "Delegate=yes")
    run = program(podman, "-d", "--rm", "--name", "served", *split, *device, command=keep_sixteen)
    Guest().must(*unit, "podman", *run)
    assert got(podman, "served") == f"{OBJECTS} EAGAIN"
    pid = podman.inspect("served")["State"]["Pid"]
    assert "/system.slice/quadlet.service/" in Path(f"/proc/{pid}/cgroup").read_text()
    assert kernel.cgroup_file(pid, "rdma.max") == f"{rdma_device} hca_handle=max hca_object={OBJECTS}"
    podman.must("rm", "-f", "-t", "0", "served")


@crun_only
def test_a_container_without_a_cgroup_of_its_own_gets_no_limited_device(
    machine_equal: None, podman: PodmanOf, rdma_device: str
) -> None:
    device = ("--device", f"{LIMITED}={rdma_device}")
    assert podman(*program(podman, "--rm", "--cgroups=disabled", *device, command=("ls",))).returncode != 0
    refused = ask_status(STATE / "control.sock")["refused"]
    latest = next(
        it for it in refused if it["call"] == "createRuntime"
    )  # other tests' containers are refused there, too
    assert latest["code"] == "LIMITS-NOT-SET"


@crun_only
@pytest.mark.outcome("podman-limited-device-removed")
def test_the_device_can_be_removed_when_the_limited_container_is_gone(podman: PodmanOf, rdma_device: str) -> None:
    podman.must(*program(podman, "--rm", "--device", f"{LIMITED}={rdma_device}", command=("ls",)))
    podman.must(*program(podman, "--rm", command=("ls",)))  # by the end of it, the kernel has freed the cgroup
    netdev = kernel.netdev_of(rdma_device)
    kernel.rdma("link", "delete", rdma_device)
    kernel.rdma("link", "add", rdma_device, "type", "rxe", "netdev", netdev)
    wait_until(lambda: [it["state"] for it in kernel.rdma_links()] == ["ACTIVE"], "an active port", seconds=30)


def program(podman: PodmanOf, *options: str, command: Sequence[str], network: str = "none") -> list[str]:
    """The arguments that run a program of the image in the place of its own."""
    return podman.run("--entrypoint", "", *options, command=command, network=network)


def got(podman: PodmanOf, container: str, path: str = "/tmp/got") -> str:
    """What the container's program wrote into a file."""
    return wait_until(
        lambda: podman("exec", container, "cat", path).stdout.strip() or None, "the program's answer", seconds=30
    )
