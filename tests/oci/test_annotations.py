"""Containers of podman and Docker get their devices by annotations, as pods do, and the host is as before whatever ends
them."""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.oci.conftest import Engine, set_up, start
from tests.oci.host import HOOKS, Host
from tests.oci.test_podman import NIC, OPENS, START_S, generate, seen_in
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import LOOK, described_mac, host_link, tree_number
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]

PREFIX = "rdma.noderesource.dev"
SLEEP = ("sleep", "1000")
PAIR = ("one", "two")
FIFTH = {"name": "fast", "match": {"device": "mlx5_5"}, "mode": "exclusive", "memlock": "4Mi"}
HOOK = f"{HOOKS}/nri-rdma-oci-hook"
MODULE = f"{HOOKS}/nri_rdma_oci_hook.py"


@pytest.fixture(scope="module")
def engine(any_engine: Engine) -> Engine:
    """The engine of this module's containers."""
    return any_engine


@pytest.fixture(scope="module")
def installed(engine: Engine) -> Iterator[None]:
    """The engine is set up, as an administrator does it."""
    with set_up(engine.host, engine.name):
        yield


def asks(engine: Engine, request: object, key: str = f"{PREFIX}/pod") -> tuple[str, str]:
    """The option of a container that asks for this."""
    return engine.annotation(f"{key}={json.dumps(request)}")


def in_container(engine: Engine, name: str) -> list[str]:
    """The netdevs of a container that runs."""
    return engine.must("exec", name, "ls", "/sys/class/net").split()


def wait_home() -> None:
    wait_until(lambda: host_link("rail5"), "the netdev to be home")


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_gets_node_netdev_memlock_and_environment(
    host_equal: None, daemon: Daemon, engine: Engine, node: Fabric, network: str
) -> None:
    words = engine.run(
        "--rm", "--cap-add", "MKNOD", *asks(engine, [FIFTH]), command=["sh", "-c", OPENS], network=network
    )
    done = engine(*words)
    seen = seen_in(done)
    assert seen.nodes == {"uverbs5": tree_number(node, "uverbs5"), "rdma_cm": tree_number(node, "rdma_cm")}
    assert seen.macs["rdma0"] == described_mac(node, "rail5")
    assert seen.memlock_kib == "4096"
    assert seen.env["NCCL_IB_HCA"] == "=mlx5_5"
    assert seen.env["RDMA_DEVICES_FAST"] == "mlx5_5"
    assert seen.env["RDMA_NETDEVS_FAST"] == "rdma0"
    # Docker makes the network after the container.
    own = "=eth0" if engine.name == "podman" and network == "bridge" else None
    assert seen.env.get("NCCL_SOCKET_IFNAME") == own
    # No driver answers to these numbers here: the first node may be opened, another one not.
    assert "uverbs5: No such device or address" in done.stdout
    assert "/tmp/other: Operation not permitted" in done.stdout


def test_a_number_asks_for_devices_of_the_default_pool(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    seen = seen_in(engine(*engine.run("--rm", *asks(engine, 2, PREFIX), command=["sh", "-c", LOOK])))
    devices = seen.env["RDMA_DEVICES_0"].split(",")
    assert len(devices) == 2
    assert sorted(seen.nodes) == sorted(["rdma_cm", *(it.replace("mlx5_", "uverbs") for it in devices)])
    assert seen.env["RDMA_NETDEVS_0"] == "rdma0,rdma1"
    assert {"rdma0", "rdma1"} <= set(seen.macs)


def test_what_the_request_says_of_the_netdev_is_done(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    request = {**FIFTH, "interface": {"name": "fast0", "mtu": 1400, "addresses": ["192.0.2.7/24"]}}
    seen = seen_in(engine(*engine.run("--rm", *asks(engine, [request]), command=["sh", "-c", LOOK], network="bridge")))
    assert (seen.mtus["fast0"], seen.addresses["fast0"][0]) == (1400, "192.0.2.7/24")
    assert seen.env["RDMA_NETDEVS_FAST"] == "fast0"


def test_what_the_container_sets_itself_stays(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    words = engine.run("--rm", *asks(engine, [FIFTH]), "--env", "NCCL_IB_HCA=mine", command=["sh", "-c", LOOK])
    seen = seen_in(engine(*words))
    assert (seen.env["NCCL_IB_HCA"], seen.env["UCX_NET_DEVICES"]) == ("mine", "mlx5_5:1,lo")


def test_a_shared_device_serves_two_containers(host_equal: None, daemon: Daemon, engine: Engine, node: Fabric) -> None:
    shared = [{"match": {"device": "mlx5_5"}, "mode": "shared"}]
    engine.must(*engine.run("-d", "--name", "one", *asks(engine, shared), command=SLEEP))
    seen = seen_in(engine(*engine.run("--rm", *asks(engine, shared), command=["sh", "-c", LOOK], network="host")))
    assert seen.nodes["uverbs5"] == tree_number(node, "uverbs5"), "also on the host's network"
    assert host_link("rail5") is not None


def test_containers_that_share_are_each_on_a_nic_of_their_own(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    for name in PAIR:
        engine.must(*engine.run("-d", "--name", name, *asks(engine, [{"mode": "shared"}]), command=SLEEP))
    held = {device["name"]: len(device["holders"]) for device in daemon.status()["devices"] if device["holders"]}
    assert sorted(held.values()) == [1, 1]


def test_a_privileged_container_gets_its_netdev(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    seen = seen_in(engine(*engine.run("--rm", "--privileged", *asks(engine, [FIFTH]), command=["sh", "-c", LOOK])))
    assert ("rdma0" in seen.macs, seen.env["RDMA_DEVICES_FAST"]) == (True, "mlx5_5")


def test_a_container_whose_annotation_is_empty_gets_nothing(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    seen = seen_in(engine(*engine.run("--rm", *asks(engine, []), command=["sh", "-c", LOOK])))
    assert (seen.nodes, list(seen.macs)) == ({}, ["lo"])


def test_who_does_not_ask_needs_no_daemon(host_equal: None, host: Host, engine: Engine) -> None:
    other = ("--annotation", "rdma.noderesource.device/pod=1")
    seen = seen_in(engine(*engine.run("--rm", *other, command=["sh", "-c", LOOK])))
    assert (seen.nodes, list(seen.macs)) == ({}, ["lo"])


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_that_is_stopped_and_started_again_gets_it_again(
    host_equal: None, daemon: Daemon, engine: Engine, network: str
) -> None:
    engine.must(*engine.run("-d", "--name", "again", *asks(engine, [FIFTH]), command=SLEEP, network=network))
    for _ in range(2):
        assert "rdma0" in in_container(engine, "again")
        assert host_link("rail5") is None
        engine.must("stop", "-t", "0", "again")
        wait_home()
        engine.must("start", "again")
    engine.must("restart", "-t", "0", "again")
    assert "rdma0" in in_container(engine, "again")
    engine.remove("again")


def test_a_killed_container_gives_back(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    engine.must(*engine.run("-d", "--name", "killed", *asks(engine, [FIFTH]), command=SLEEP))
    os.kill(engine.inspect("killed")["State"]["Pid"], signal.SIGKILL)
    wait_home()


def test_a_command_that_does_not_exist_leaves_nothing(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    done = engine(*engine.run("--rm", *asks(engine, [FIFTH]), command=["/bin/nosuch"]))
    assert done.returncode == 127, done.stderr
    wait_home()


def test_two_containers_that_race_get_a_device_each(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    racing = [engine.start(*engine.run("-d", "--name", it, *asks(engine, 1), command=SLEEP)) for it in PAIR]
    told = [process.communicate(timeout=60) for process in racing]
    assert [process.returncode for process in racing] == [0, 0], told
    entries = [engine.must("exec", name, "cat", "/proc/1/environ").split("\0") for name in PAIR]
    devices = {next(it for it in of_one if it.startswith("RDMA_DEVICES_0=")) for of_one in entries}
    assert len(devices) == 2


def test_of_two_containers_that_race_for_one_device_one_is_refused(
    host_equal: None, daemon: Daemon, engine: Engine
) -> None:
    racing = [engine.start(*engine.run("-d", "--name", it, *asks(engine, [FIFTH]), command=SLEEP)) for it in PAIR]
    told = [process.communicate(timeout=60) for process in racing]
    refused = [error for process, (_, error) in zip(racing, told, strict=True) if process.returncode != 0]
    assert len(refused) == 1, told
    assert "nri-rdma: DEVICE-IN-USE: " in refused[0]
    assert [(it["call"], it["code"]) for it in daemon.status()["refused"]] == [("precreate", "DEVICE-IN-USE")]


# What is refused, with one sentence that the user sees


def refused(engine: Engine, *options: str, network: str = "none") -> str:
    """Run a container that does not start; what its user reads."""
    done = engine(*engine.run("--rm", *options, command=["echo", "it runs"], network=network))
    assert (done.returncode in {125, 126, 127}, done.stdout) == (True, ""), done.stderr
    assert done.stderr.count("nri-rdma: ") == 1, done.stderr
    return done.stderr


def test_a_container_on_the_hosts_network_is_refused(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    said = refused(engine, *asks(engine, [FIFTH]), network="host")
    assert "nri-rdma: HOST-NETWORK: this container is on the host's network" in said
    assert "--network host" in said


def test_an_annotation_that_cannot_be_read_is_refused(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    assert "nri-rdma: ANNOTATION-UNKNOWN-KEY: " in refused(engine, *asks(engine, [{**FIFTH, "colour": "red"}]))


def test_a_list_for_another_container_is_refused(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    said = refused(engine, *asks(engine, [FIFTH], f"{PREFIX}/container.main"))
    assert "nri-rdma: ANNOTATION-PLACE: " in said


def test_devices_by_annotation_and_by_cdi_are_refused(
    host_equal: None, daemon: Daemon, engine: Engine, node: Fabric
) -> None:
    generate(engine.host, node)
    assert "nri-rdma: ANNOTATION-PLACE: " in refused(engine, *asks(engine, [FIFTH]), "--device", f"{NIC}=mlx5_4")


def test_without_the_daemon_no_container_that_asks_starts(host_equal: None, host: Host, engine: Engine) -> None:
    before = time.monotonic()
    said = refused(engine, *asks(engine, [FIFTH]))
    took = time.monotonic() - before
    assert "nri-rdma: DAEMON-ABSENT: " in said
    assert "systemctl start nri-rdma" in said
    assert took < 2 + START_S


def test_a_stopped_daemon_keeps_a_container_from_starting(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert "nri-rdma: DAEMON-LATE: " in refused(engine, *asks(engine, [FIFTH]))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_a_daemon_that_comes_within_two_seconds_is_awaited(host_equal: None, daemon: Daemon, engine: Engine) -> None:
    daemon.kill()
    starting = engine.start(*engine.run("-d", "--name", "early", *asks(engine, [FIFTH]), command=SLEEP))
    daemon.start_process()
    told = starting.communicate(timeout=60)
    assert starting.returncode == 0, told
    assert "rdma0" in in_container(engine, "early")


def test_a_container_keeps_its_device_over_a_restart_and_gives_it_back(
    host_equal: None, daemon: Daemon, engine: Engine
) -> None:
    engine.must(*engine.run("-d", "--name", "kept", *asks(engine, [FIFTH]), command=SLEEP))
    daemon.kill()
    start(daemon)
    assert "rdma0" in in_container(engine, "kept")
    wait_until(lambda: daemon.status()["sandboxes"], "the container to be taken up")
    engine.remove("kept")
    wait_home()


@pytest.mark.parametrize("fault", ["missing", "no program", "module missing", "module cut"])
def test_without_the_hook_no_container_that_asks_starts(
    host_equal: None, daemon: Daemon, engine: Engine, fault: str
) -> None:
    hook, module = engine.host.file(HOOK), engine.host.file(MODULE)
    kept = hook.read_bytes(), module.read_bytes()
    match fault:
        case "missing":
            hook.unlink()
        case "no program":
            hook.write_text("#!/bin/nothing\n")
        case "module missing":
            module.unlink()
        case "module cut":
            module.write_bytes(kept[1][:1000])
    try:
        done = engine(*engine.run("--rm", *asks(engine, [FIFTH]), command=["echo", "it runs"]))
    finally:
        engine.host.remove_hook()
        engine.host.put_hook()
    assert (done.returncode in {125, 126, 127}, done.stdout) == (True, ""), done.stderr
    assert f"run `nri-rdma install {engine.name}`" in done.stderr
    assert kept == (hook.read_bytes(), module.read_bytes())
