"""podman containers get their devices by annotations, as pods do, and the host is as before whatever ends them."""

import json
import os
import signal
import time

import pytest

from tests.oci.conftest import start
from tests.oci.host import HOOKS, Host, Podman
from tests.oci.image import IMAGE
from tests.oci.test_podman import NIC, OPENS, START_S, generate, has_sentence, seen_in
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import LOOK, described_mac, host_link, tree_number
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]

PREFIX = "rdma.noderesource.dev"
SLEEP = ("sleep", "1000")
FIFTH = {"name": "fast", "match": {"device": "mlx5_5"}, "mode": "exclusive", "memlock": "4Mi"}
HOOK = f"{HOOKS}/nri-rdma-oci-hook"


def asks(podman: Podman, request: object, key: str = f"{PREFIX}/pod") -> tuple[str, str]:
    """The option of a container that asks for this."""
    text = f"{key}={json.dumps(request)}"
    if podman.must("--version").startswith("podman version 4."):  # it takes the text for a row of a CSV file
        text = '"' + text.replace('"', '""') + '"'
    return "--annotation", text


def in_container(podman: Podman, name: str) -> list[str]:
    """The netdevs of a container that runs."""
    return podman.must("exec", name, "ls", "/sys/class/net").split()


def wait_home() -> None:
    wait_until(lambda: host_link("rail5"), "the netdev to be home")


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_gets_node_netdev_memlock_and_environment(
    host_equal: None, daemon: Daemon, podman: Podman, node: Fabric, network: str
) -> None:
    words = podman.run(
        "--rm", "--cap-add", "MKNOD", *asks(podman, [FIFTH]), command=["sh", "-c", OPENS], network=network
    )
    done = podman(*words)
    seen = seen_in(done)
    assert seen.nodes == {"uverbs5": tree_number(node, "uverbs5"), "rdma_cm": tree_number(node, "rdma_cm")}
    assert seen.macs["rdma0"] == described_mac(node, "rail5")
    assert seen.memlock_kib == "4096"
    assert seen.env["NCCL_IB_HCA"] == "=mlx5_5"
    assert seen.env["RDMA_DEVICES_FAST"] == "mlx5_5"
    assert seen.env["RDMA_NETDEVS_FAST"] == "rdma0"
    # No driver answers to these numbers here: the first node may be opened, another one not.
    assert "uverbs5: No such device or address" in done.stdout
    assert "/tmp/other: Operation not permitted" in done.stdout


def test_a_number_asks_for_devices_of_the_default_pool(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    seen = seen_in(podman(*podman.run("--rm", *asks(podman, 2, PREFIX), command=["sh", "-c", LOOK])))
    devices = seen.env["RDMA_DEVICES_0"].split(",")
    assert len(devices) == 2
    assert sorted(seen.nodes) == sorted(["rdma_cm", *(it.replace("mlx5_", "uverbs") for it in devices)])
    assert seen.env["RDMA_NETDEVS_0"] == "rdma0,rdma1"
    assert {"rdma0", "rdma1"} <= set(seen.macs)


def test_what_the_request_says_of_the_netdev_is_done(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    request = {**FIFTH, "interface": {"name": "fast0", "mtu": 1400, "addresses": ["192.0.2.7/24"]}}
    seen = seen_in(podman(*podman.run("--rm", *asks(podman, [request]), command=["sh", "-c", LOOK], network="bridge")))
    assert (seen.mtus["fast0"], seen.addresses["fast0"][0]) == (1400, "192.0.2.7/24")
    assert seen.env["RDMA_NETDEVS_FAST"] == "fast0"


def test_what_the_container_sets_itself_stays(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    words = podman.run("--rm", *asks(podman, [FIFTH]), "--env", "NCCL_IB_HCA=mine", command=["sh", "-c", LOOK])
    seen = seen_in(podman(*words))
    assert (seen.env["NCCL_IB_HCA"], seen.env["UCX_NET_DEVICES"]) == ("mine", "mlx5_5:1")


def test_a_shared_device_serves_two_containers(host_equal: None, daemon: Daemon, podman: Podman, node: Fabric) -> None:
    shared = [{"match": {"device": "mlx5_5"}, "mode": "shared"}]
    podman.must(*podman.run("-d", "--name", "one", *asks(podman, shared), command=SLEEP))
    seen = seen_in(podman(*podman.run("--rm", *asks(podman, shared), command=["sh", "-c", LOOK], network="host")))
    assert seen.nodes["uverbs5"] == tree_number(node, "uverbs5"), "also on the host's network"
    assert host_link("rail5") is not None


def test_a_privileged_container_gets_its_netdev(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    seen = seen_in(podman(*podman.run("--rm", "--privileged", *asks(podman, [FIFTH]), command=["sh", "-c", LOOK])))
    assert ("rdma0" in seen.macs, seen.env["RDMA_DEVICES_FAST"]) == (True, "mlx5_5")


def test_a_container_whose_annotation_is_empty_gets_nothing(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    seen = seen_in(podman(*podman.run("--rm", *asks(podman, []), command=["sh", "-c", LOOK])))
    assert (seen.nodes, list(seen.macs)) == ({}, ["lo"])


def test_who_does_not_ask_needs_no_daemon(host_equal: None, host: Host, podman: Podman) -> None:
    other = ("--annotation", "rdma.noderesource.device/pod=1")
    seen = seen_in(podman(*podman.run("--rm", *other, command=["sh", "-c", LOOK])))
    assert (seen.nodes, list(seen.macs)) == ({}, ["lo"])


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_that_is_stopped_and_started_again_gets_it_again(
    host_equal: None, daemon: Daemon, podman: Podman, network: str
) -> None:
    podman.must(*podman.run("-d", "--name", "again", *asks(podman, [FIFTH]), command=SLEEP, network=network))
    for _ in range(2):
        assert "rdma0" in in_container(podman, "again")
        assert host_link("rail5") is None
        podman.must("stop", "-t", "0", "again")
        wait_home()
        podman.must("start", "again")
    podman.must("restart", "-t", "0", "again")
    assert "rdma0" in in_container(podman, "again")
    podman.must("rm", "-f", "-t", "0", "again")


@pytest.mark.parametrize("victims", [("init",), ("conmon", "init"), ("init", "conmon")], ids="-".join)
def test_a_killed_container_gives_back(
    host_equal: None, daemon: Daemon, podman: Podman, victims: tuple[str, ...]
) -> None:
    podman.must(*podman.run("-d", "--name", "killed", *asks(podman, [FIFTH]), command=SLEEP))
    state = podman.inspect("killed")["State"]
    pids = {"init": state["Pid"], "conmon": state["ConmonPid"]}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    wait_home()


def test_a_command_that_does_not_exist_leaves_nothing(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    done = podman(*podman.run("--rm", *asks(podman, [FIFTH]), command=["/bin/nosuch"]))
    assert done.returncode == 127, done.stderr
    wait_home()


def test_a_container_that_is_made_and_removed_leaves_nothing(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    podman.must(*podman.create("--name", "made", *asks(podman, [FIFTH])))
    assert host_link("rail5") is not None, "to create asks for nothing"
    podman.must("init", "made")
    assert host_link("rail5") is None
    podman.must("rm", "made")
    wait_home()


def test_two_containers_that_race_get_a_device_each(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    racing = [
        podman.host.start("podman", *podman.run("-d", "--name", it, *asks(podman, 1), command=SLEEP)) for it in "ab"
    ]
    told = [process.communicate(timeout=60) for process in racing]
    assert [process.returncode for process in racing] == [0, 0], told
    entries = [podman.must("exec", name, "cat", "/proc/1/environ").split("\0") for name in "ab"]
    devices = {next(it for it in of_one if it.startswith("RDMA_DEVICES_0=")) for of_one in entries}
    assert len(devices) == 2


def test_of_two_containers_that_race_for_one_device_one_is_refused(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    racing = [
        podman.host.start("podman", *podman.run("-d", "--name", it, *asks(podman, [FIFTH]), command=SLEEP))
        for it in "ab"
    ]
    told = [process.communicate(timeout=60) for process in racing]
    refused = [error for process, (_, error) in zip(racing, told, strict=True) if process.returncode != 0]
    assert len(refused) == 1, told
    assert "nri-rdma: DEVICE-IN-USE: " in refused[0]
    assert [(it["call"], it["code"]) for it in daemon.status()["refused"]] == [("precreate", "DEVICE-IN-USE")]


def test_the_containers_of_a_pod_share_a_netdev_and_it_comes_home(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    infra = ("--infra-image", IMAGE, "--infra-command", "/bin/sleep 1000")
    podman.must("--runtime", podman.oci_runtime, "pod", "create", "--name", "pod", "--network", "none", *infra)
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "one", *asks(podman, [FIFTH]), command=SLEEP, network=""))
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "two", command=SLEEP, network=""))
    fourth = {**FIFTH, "match": {"device": "mlx5_4"}}
    podman.must(
        *podman.run("-d", "--pod", "pod", "--name", "three", *asks(podman, [fourth]), command=SLEEP, network="")
    )
    assert "RDMA_NETDEVS_FAST=rdma1" in podman.must("exec", "three", "cat", "/proc/1/environ")
    for name in ("one", "two", "three"):
        assert {"rdma0", "rdma1"} <= set(in_container(podman, name))
    podman.must("rm", "-f", "-t", "0", "one")
    wait_home()
    assert ("rdma0" in in_container(podman, "two"), "rdma1" in in_container(podman, "two")) == (False, True)


# What is refused, with one sentence that the user sees


def refused(podman: Podman, *options: str, network: str = "none") -> str:
    """Run a container that does not start; what its user reads."""
    done = podman(*podman.run("--rm", *options, command=["echo", "it runs"], network=network))
    assert done.returncode in {126, 127}, done.stderr
    assert "it runs" not in done.stdout
    assert done.stderr.count("nri-rdma: ") == 1, done.stderr
    return done.stderr


def test_a_container_on_the_hosts_network_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    said = refused(podman, *asks(podman, [FIFTH]), network="host")
    assert "nri-rdma: HOST-NETWORK: this container is on the host's network" in said
    assert "--network host" in said


def test_an_annotation_that_cannot_be_read_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    assert "nri-rdma: ANNOTATION-UNKNOWN-KEY: " in refused(podman, *asks(podman, [{**FIFTH, "colour": "red"}]))


def test_a_list_for_another_container_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    said = refused(podman, *asks(podman, [FIFTH], f"{PREFIX}/container.main"))
    assert "nri-rdma: ANNOTATION-PLACE: " in said


def test_what_fails_after_it_was_made_is_told_too(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    request = {**FIFTH, "interface": {"name": "eth0"}}  # podman's bridge has that name, which nobody knows before
    done = podman(*podman.run("--rm", *asks(podman, [request]), command=["echo", "it runs"], network="bridge"))
    assert (done.returncode, done.stdout) == (126, "")
    assert has_sentence(podman, done.stderr, "NAME-CONFLICT")


def test_devices_by_annotation_and_by_cdi_are_refused(
    host_equal: None, daemon: Daemon, podman: Podman, node: Fabric
) -> None:
    generate(podman.host, node)
    assert "nri-rdma: ANNOTATION-PLACE: " in refused(podman, *asks(podman, [FIFTH]), "--device", f"{NIC}=mlx5_4")


def test_without_the_daemon_no_container_that_asks_starts(host_equal: None, host: Host, podman: Podman) -> None:
    before = time.monotonic()
    said = refused(podman, *asks(podman, [FIFTH]))
    took = time.monotonic() - before
    assert "nri-rdma: DAEMON-ABSENT: " in said
    assert "systemctl start nri-rdma" in said
    assert took < 2 + START_S


def test_a_stopped_daemon_keeps_a_container_from_starting(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert "nri-rdma: DAEMON-LATE: " in refused(podman, *asks(podman, [FIFTH]))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_daemon_that_comes_within_two_seconds_is_awaited(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    daemon.kill()
    starting = podman.host.start("podman", *podman.run("-d", "--name", "early", *asks(podman, [FIFTH]), command=SLEEP))
    daemon.start_process()
    told = starting.communicate(timeout=60)
    assert starting.returncode == 0, told
    assert "rdma0" in in_container(podman, "early")


def test_a_container_keeps_its_device_over_a_restart_and_gives_it_back(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    podman.must(*podman.run("-d", "--name", "kept", *asks(podman, [FIFTH]), command=SLEEP))
    daemon.kill()
    start(daemon)
    assert "rdma0" in in_container(podman, "kept")
    wait_until(lambda: daemon.status()["sandboxes"], "the container to be taken up")
    podman.must("rm", "-f", "-t", "0", "kept")
    wait_home()


@pytest.mark.parametrize("fault", ["missing", "no program"])
def test_without_the_hook_no_container_that_asks_starts(
    host_equal: None, daemon: Daemon, podman: Podman, fault: str
) -> None:
    hook = podman.host.file(HOOK)
    kept = hook.read_bytes()
    hook.unlink()
    if fault == "no program":
        hook.write_text("#!/bin/nothing\n")
        hook.chmod(0o755)
    try:
        done = podman(*podman.run("--rm", *asks(podman, [FIFTH]), command=["echo", "it runs"]))
    finally:
        hook.unlink(missing_ok=True)
        podman.host.put_hook()
    assert (done.returncode in {126, 127}, done.stdout) == (True, ""), done.stderr
    assert "run `nri-rdma install podman`" in done.stderr
    assert kept == hook.read_bytes()


def test_a_container_of_another_user_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    host = podman.host
    home = host.file("/tmp/user")
    home.mkdir(exist_ok=True)
    root = home / "root"
    if not root.exists():
        root.mkdir()
        host.must("tar", "-x", "-f", "/run/files/box.tar", "-C", "/tmp/user/root")
        host.must("chown", "-R", "1000:1000", "/tmp/user")
    become = (
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "env",
        "HOME=/tmp/user",
        "XDG_RUNTIME_DIR=/tmp/user",
    )
    own = ("--root", "/tmp/user/storage", "--runroot", "/tmp/user/run", "--runtime", "crun")
    run = ("podman", *own, "run", "--rm", "--network=none", "--cgroups=disabled", *asks(podman, [FIFTH]))
    done = host.run_command(*become, *run, "--rootfs", "/tmp/user/root", "echo", "it runs")
    assert (done.returncode, done.stdout) == (126, ""), done.stderr
    assert "nri-rdma: PRIVILEGE: " in done.stderr
