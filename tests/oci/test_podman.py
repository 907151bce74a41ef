"""podman containers get their devices by a CDI spec with hooks, and the host is as before whatever ends them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.oci.conftest import start
from tests.oci.host import HOOKS, Host, Podman
from tests.oci.image import IMAGE
from tests.rig.daemon import EXCLUSIVE_FIRST, PROJECT, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import LOOK, Seen, described_mac, host_link, read_seen, tree_number
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("spec")]

NIC = "rdma.noderesource.dev/nic"
DEVICE = ("--device", f"{NIC}=mlx5_5")
SLEEP = ("sleep", "1000")
START_S = 2.0
"""What podman itself may take to start a container on a busy machine."""


@pytest.fixture(scope="module")
def spec(host: Host, node: Fabric) -> None:
    """The CDI spec of the node's devices, with hooks."""
    generate(host, node)


def generate(host: Host, node: Fabric, *more: str) -> None:
    """Write the spec as an administrator does."""
    roots = ["--sysfs-root", str(node.sysfs), "--dev-root", str(node.dev)]
    command = [
        sys.executable,
        "-m",
        "nri_rdma",
        "cdi",
        "generate",
        "--hooks",
        "--memlock",
        "4Mi",
        "--output",
        str(host.cdi_dir),
    ]
    subprocess.run([*command, *roots, *EXCLUSIVE_FIRST, *more], cwd=PROJECT, check=True)


OPENS = f"{LOOK}\n(echo x > /dev/infiniband/uverbs5) 2>&1; mknod /tmp/other c 231 196; (echo x > /tmp/other) 2>&1; true"
"""Look around, and open the fifth device and another one."""


def seen_in(done: subprocess.CompletedProcess[str]) -> Seen:
    assert done.returncode == 0, done.stderr
    return read_seen(done.stdout)


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_gets_node_netdev_memlock_and_environment(
    host_equal: None, daemon: Daemon, podman: Podman, node: Fabric, network: str
) -> None:
    done = podman(
        *podman.run(
            "--rm", "--cap-add", "MKNOD", "--device", f"{NIC}=mlx5_5", command=["sh", "-c", OPENS], network=network
        )
    )
    seen = seen_in(done)
    assert seen.nodes == {"uverbs5": tree_number(node, "uverbs5"), "rdma_cm": tree_number(node, "rdma_cm")}
    assert seen.macs["rail5"] == described_mac(node, "rail5")
    assert seen.memlock_kib == "4096"
    assert seen.env["RDMA_DEVICES_MLX5_5"] == "mlx5_5"
    assert seen.env["RDMA_NETDEVS_MLX5_5"] == "rail5"
    # No driver answers to these numbers here: the first node may be opened, another one not.
    assert "uverbs5: No such device or address" in done.stdout
    assert "/tmp/other: Operation not permitted" in done.stdout


def test_several_devices_and_one_given_twice(host_equal: None, daemon: Daemon, podman: Podman, node: Fabric) -> None:
    devices = [word for number in (3, 4, 3) for word in ("--device", f"{NIC}=mlx5_{number}")]
    seen = seen_in(podman(*podman.run("--rm", *devices, command=["sh", "-c", LOOK])))
    assert seen.nodes == {name: tree_number(node, name) for name in ("uverbs3", "uverbs4", "rdma_cm")}
    assert {name: seen.macs[name] for name in ("rail3", "rail4")} == {
        name: described_mac(node, name) for name in ("rail3", "rail4")
    }
    assert (seen.env["RDMA_NETDEVS_MLX5_3"], seen.env["RDMA_NETDEVS_MLX5_4"]) == ("rail3", "rail4")


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_stopped_container_gives_back_and_gets_again(
    host_equal: None, daemon: Daemon, podman: Podman, network: str
) -> None:
    podman.must(*podman.run("-d", "--name", "again", *DEVICE, command=SLEEP, network=network))
    for _ in range(3):
        assert in_container(podman, "again")
        assert host_link("rail5") is None
        podman.must("stop", "-t", "0", "again")
        wait_home()
        podman.must("start", "again")
    podman.must("restart", "-t", "0", "again")
    assert in_container(podman, "again")
    podman.must("rm", "-f", "-t", "0", "again")


@pytest.mark.parametrize("network", ["none", "bridge"])
@pytest.mark.parametrize("victims", [("init",), ("conmon", "init"), ("init", "conmon")], ids="-".join)
def test_a_killed_container_gives_back(
    host_equal: None, daemon: Daemon, podman: Podman, network: str, victims: tuple[str, ...]
) -> None:
    podman.must(*podman.run("-d", "--name", "killed", *DEVICE, command=SLEEP, network=network))
    assert in_container(podman, "killed")
    state = podman.inspect("killed")["State"]
    pids = {"init": state["Pid"], "conmon": state["ConmonPid"]}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    wait_home()


def test_an_image_without_libraries_is_told_before_its_program_runs(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    done = podman(*podman.run("--name", "bare", "-d", *DEVICE, command=SLEEP))
    assert done.returncode == 0, done.stderr
    (told,) = daemon.status()["images"]
    assert (told["code"], told["container"]) == ("USERSPACE-MISSING", done.stdout.strip()[:12])
    assert "the image has no libibverbs.so.1" in told["error"]
    podman.must("rm", "-f", "-t", "0", "bare")


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_command_that_does_not_exist_leaves_nothing(
    host_equal: None, daemon: Daemon, podman: Podman, network: str
) -> None:
    done = podman(*podman.run("--rm", *DEVICE, command=["/bin/nosuch"], network=network))
    assert done.returncode == 127, done.stderr
    wait_home()


def test_a_container_that_is_made_and_removed_leaves_nothing(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    podman.must(*podman.create("--name", "made", *DEVICE))
    assert host_link("rail5") is not None, "to create asks for nothing"
    podman.must("init", "made")
    assert host_link("rail5") is None
    podman.must("rm", "made")
    wait_home()


def test_of_two_containers_that_race_for_a_device_one_is_refused(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    racing = [podman.host.start("podman", *podman.run("-d", "--name", name, *DEVICE, command=SLEEP)) for name in "ab"]
    told = [process.communicate(timeout=60) for process in racing]
    codes = [process.returncode for process in racing]
    assert sorted(codes) == [0, 126], told
    assert has_sentence(podman, told[codes.index(126)][1], "DEVICE-IN-USE")
    assert [(it["call"], it["code"]) for it in daemon.status()["refused"]] == [("createRuntime", "DEVICE-IN-USE")]
    assert in_container(podman, "ab"[codes.index(0)])


def test_a_shared_device_serves_two_containers_and_its_netdev_stays(
    host_equal: None, daemon: Daemon, podman: Podman, node: Fabric
) -> None:
    generate(podman.host, node, "--mode", "shared")
    try:
        podman.must(*podman.run("-d", "--name", "one", *DEVICE, command=SLEEP))
        seen = seen_in(podman(*podman.run("--rm", *DEVICE, command=["sh", "-c", LOOK])))
    finally:
        generate(podman.host, node)
    assert seen.nodes["uverbs5"] == tree_number(node, "uverbs5")
    assert list(seen.macs) == ["lo"]
    assert "RDMA_NETDEVS_MLX5_5" not in seen.env
    assert host_link("rail5") is not None


def test_a_container_on_the_hosts_network_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    done = podman(*podman.run("--rm", *DEVICE, network="host"))
    assert done.returncode == 126
    assert has_sentence(podman, done.stderr, "HOST-NETWORK")


def test_the_containers_of_a_pod_share_a_netdev_and_it_comes_home(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    infra = ("--infra-image", IMAGE, "--infra-command", "/bin/sleep 1000")
    podman.must("--runtime", podman.oci_runtime, "pod", "create", "--name", "pod", "--network", "none", *infra)
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "one", *DEVICE, command=SLEEP, network=""))
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "two", command=SLEEP, network=""))
    assert in_container(podman, "one")
    assert in_container(podman, "two")
    podman.must("rm", "-f", "-t", "0", "one")
    wait_home()
    assert not in_container(podman, "two")


# A daemon that is not there


def test_without_the_daemon_no_container_starts(host_equal: None, host: Host, podman: Podman) -> None:
    before = time.monotonic()
    done = podman(*podman.run("--rm", *DEVICE))
    took = time.monotonic() - before
    assert done.returncode == 126, done.stdout
    assert has_sentence(podman, done.stderr, "DAEMON-ABSENT")
    assert took < 2 + START_S


def test_a_stopped_daemon_keeps_a_container_from_starting(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        before = time.monotonic()
        done = podman(*podman.run("--rm", *DEVICE))
        took = time.monotonic() - before
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert done.returncode == 126, done.stdout
    assert has_sentence(podman, done.stderr, "DAEMON-LATE")
    assert took < 2 + START_S


def test_a_daemon_that_comes_within_two_seconds_is_awaited(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    daemon.kill()
    starting = podman.host.start("podman", *podman.run("-d", "--name", "early", *DEVICE, command=SLEEP))
    daemon.start_process()
    told = starting.communicate(timeout=60)
    assert starting.returncode == 0, told
    assert in_container(podman, "early")


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_keeps_its_device_over_a_restart_and_gives_it_back(
    host_equal: None, daemon: Daemon, podman: Podman, network: str
) -> None:
    podman.must(*podman.run("-d", "--name", "kept", *DEVICE, command=SLEEP, network=network))
    daemon.kill()
    start(daemon)
    pid = podman.inspect("kept")["State"]["Pid"]
    namespace = str(Path(f"/proc/{pid}/ns/net").readlink())
    wait_until(lambda: namespace in open_files(daemon.pid), "the container's namespace to be held")
    assert in_container(podman, "kept")
    os.kill(pid, signal.SIGKILL)
    wait_home()


def test_a_hook_without_its_module_keeps_a_container_from_starting_and_says_so(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    podman.host.file(f"{HOOKS}/nri_rdma_oci_hook.py").unlink()
    podman.host.system_log()
    try:
        done = podman(*podman.run("--rm", *DEVICE, command=["echo", "it runs"]))
    finally:
        podman.host.put_hook()
    assert (done.returncode in {125, 126, 127}, done.stdout) == (True, "")
    assert has_sentence(podman, done.stderr, "OCI-STATE"), done.stderr


def test_what_python_compiles_of_the_hook_is_for_root_to_write(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    """crun runs createRuntime hooks with umask 0."""
    podman.host.remove_hook()
    podman.host.put_hook()
    podman.must(*podman.run("--rm", *DEVICE))
    folder = podman.host.file(f"{HOOKS}/__pycache__")
    assert [it.stat().st_mode & 0o777 for it in (folder, *folder.iterdir())] == [0o755, 0o644]


def in_container(podman: Podman, name: str) -> bool:
    """Whether the netdev is in a container that runs."""
    return "rail5" in podman.must("exec", name, "ls", "/sys/class/net").split()


def wait_home() -> None:
    wait_until(lambda: host_link("rail5"), "the netdev to be home")


def open_files(pid: int) -> set[str]:
    """What a process has open, in the kernel's words."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            found.add(str(link.readlink()))
    return found


def has_sentence(podman: Podman, stderr: str, code: str) -> bool:
    """Whether the user sees our sentence: runc shows it; crun shows the program whose name the system's log has."""
    if podman.oci_runtime == "runc":
        return f"nri-rdma: {code}: " in stderr
    return "nri-rdma-oci-hook" in stderr and any(f"nri-rdma: {code}: " in line for line in podman.host.system_log())
