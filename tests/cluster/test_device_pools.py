"""Pools whose ids stand for devices: the kubelet allocates these, next to GPUs, and nri-rdma brings exactly them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, execute, phase, pod, start
from tests.cluster.test_share_restarts import restarts
from tests.cluster.test_shares import allocatable, devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until
from tests.rig.node import load

NIC, ALONE, GPU = "rdma/nic", "rdma/alone", "nvidia.com/gpu"
KUBELET = {"topologyManagerPolicy": "single-numa-node"}
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"

[pools.nics]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"] }}
modes = ["shared"]
door = "resource"
resource = "{NIC}"
gives = "device"

[pools.alone]
select = {{ device = ["mlx5_6", "mlx5_7"] }}
modes = ["exclusive"]
door = "resource"
resource = "{ALONE}"
gives = "device"
"""
EIGHT = load("eight")
HOMES = {function.address: function.numa_node for function in EIGHT.functions}
NICS = [device.function for device in EIGHT.rdma]
"""The PCI address of each device, by the number of its uverbs node."""
GPU_HOMES = {gpu.uuid: HOMES[gpu.function] for gpu in EIGHT.gpus}


@pytest.fixture(autouse=True)
def counted(cluster: Cluster) -> None:
    """The scheduler knows the devices: the node's status has them."""
    wait_until(lambda: _are_counted(cluster), "the node's devices", 60)


def _are_counted(cluster: Cluster) -> bool:
    return (allocatable(cluster, NIC), allocatable(cluster, ALONE)) == ("6", "2")


def allocated(cluster: Cluster, name: str, resource: str = NIC, container: str = "c0") -> set[str]:
    """The ids that the kubelet's device manager has written down for a container."""
    uid = cluster.get("pod", name)["metadata"]["uid"]
    return {
        it
        for entry in json.loads(_checkpoint(cluster).read_text())["Data"]["PodDeviceEntries"]
        if (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (uid, container, resource)
        for ids in entry["DeviceIDs"].values()
        for it in ids
    }


def shown(cluster: Cluster, name: str, container: str = "c0") -> set[str]:
    """The PCI addresses of the devices whose nodes a container has."""
    found = devices(cluster, name, container)
    return {NICS[int(it.removeprefix("uverbs"))] for it in found if it.startswith("uverbs")}


def asking(name: str, **counts: int) -> dict[str, Any]:
    """A pod of one container with these limits."""
    names = {"nic": NIC, "alone": ALONE, "gpu": GPU}
    return pod(name, containers=[{"resources": {"limits": {names[key]: count for key, count in counts.items()}}}])


def test_a_container_has_the_node_of_exactly_the_device_whose_id_the_kubelet_allocated(cluster: Cluster) -> None:
    start(cluster, pod("one", containers=[{"resources": {"limits": {NIC: 1}}}, {}]))
    assert len(allocated(cluster, "one")) == 1
    assert shown(cluster, "one") == allocated(cluster, "one")
    assert devices(cluster, "one", "c1") == []
    delete(cluster, "one")


def test_two_pods_with_two_gpus_have_their_two_devices_on_the_numa_node_of_these(cluster: Cluster) -> None:
    cluster.nodes["n1"].start_gpus(GPU)
    wait_until(lambda: allocatable(cluster, GPU) == "8", "the node's GPUs", 60)
    for name in ("first", "second"):
        start(cluster, asking(name, nic=2, gpu=2))
    for name in ("first", "second"):
        told = execute(cluster, name, "echo $NVIDIA_VISIBLE_DEVICES").strip().split(",")
        homes = {GPU_HOMES[gpu] for gpu in told}
        print(f"{name}: GPUs on {homes}, devices {sorted(shown(cluster, name))}")
        assert len(homes) == 1
        assert {HOMES[it] for it in shown(cluster, name)} == homes
        assert shown(cluster, name) == allocated(cluster, name)
        assert len(shown(cluster, name)) == 2
    assert not shown(cluster, "first") & shown(cluster, "second")
    for name in ("first", "second"):
        delete(cluster, name)


def test_an_init_container_has_the_device_that_the_kubelet_gives_to_the_next_one(cluster: Cluster) -> None:
    asked = asking("init", nic=1)
    (main,) = asked["spec"]["containers"]
    look = "ls /dev/infiniband > /dev/termination-log"
    asked["spec"]["initContainers"] = [{**main, "name": "init", "command": ["sh", "-c", look]}]
    found = start(cluster, asked)
    told = found["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"].split()
    assert told == devices(cluster, "init")
    assert shown(cluster, "init") == allocated(cluster, "init") == allocated(cluster, "init", container="init")
    delete(cluster, "init")


def test_a_device_that_a_pod_has_alone_comes_with_its_netdev_and_stays_counted(cluster: Cluster) -> None:
    start(cluster, asking("alone", alone=1))
    (address,) = allocated(cluster, "alone", ALONE)
    (described,) = (it for it in EIGHT.netdevs if it.function == address)
    assert shown(cluster, "alone") == {address}
    assert described.mac in execute(cluster, "alone", "cat /sys/class/net/*/address")
    time.sleep(2)  # two updates of the node's status
    assert allocatable(cluster, ALONE) == "2"
    delete(cluster, "alone")
    start(cluster, asking("again", alone=2))
    assert len(shown(cluster, "again")) == 2
    delete(cluster, "again")


def test_no_id_is_given_twice_whatever_is_restarted_or_killed(cluster: Cluster) -> None:
    names = [f"r{number}" for number in range(6)]
    for name in names[:3]:
        start(cluster, asking(name, nic=1))
    before = {name: shown(cluster, name) for name in names[:3]}
    for name, killed in zip(names[3:], (["kubelet"], ["nri-rdma"], ["kubelet", "nri-rdma"]), strict=True):
        restart(cluster, *killed)
        start(cluster, asking(name, nic=1))
    found = {name: shown(cluster, name) for name in names}
    assert {name: found[name] for name in names[:3]} == before
    assert set.union(*found.values()) == set(NICS[:6])
    assert {restarts(cluster, name) for name in names} == {0}
    cluster.kubectl("create", "-f", "-", given=asking("seventh", nic=1))
    conditions = ("get", "pod", "seventh", '-o=jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}')
    cluster.wait("the scheduler's answer", lambda: f"Insufficient {NIC}" in cluster.kubectl(*conditions))
    delete(cluster, "seventh")
    for name in names:
        delete(cluster, name)


def restart(cluster: Cluster, *killed: str, forgets: bool = False) -> None:
    """Kill these and start them again; `forgets`: the kubelet has lost the checkpoint of its device manager. Wait until
    the kubelet has the devices."""
    node = cluster.nodes["n1"]
    before = _registrations(cluster)
    for name in killed:
        node.kill(name)
    if forgets:
        _checkpoint(cluster).unlink()
    for name, begin in (("kubelet", node.start_kubelet), ("nri-rdma", node.start_daemon)):
        if name in killed:
            begin()
    wait_until(lambda: _registrations(cluster) >= before + 2, "the registration of both pools", 60)
    wait_until(lambda: _are_counted(cluster), "the node's devices", 60)


def _registrations(cluster: Cluster) -> int:
    return (cluster.nodes["n1"].machine.folder / "log/nri-rdma.log").read_text().count("registered with the kubelet")


def _checkpoint(cluster: Cluster) -> Path:
    return cluster.nodes["n1"].machine.folder / "var-lib/kubelet/device-plugins/kubelet_internal_checkpoint"


def test_a_kubelet_that_has_lost_its_checkpoint_gives_no_device_to_a_second_pod(cluster: Cluster) -> None:
    """It takes every id for free, and begins with NUMA node 0: the pod is refused until the device is free."""
    names = [f"l{number}" for number in range(5)]
    for name in names:
        start(cluster, asking(name, nic=1))
    holders = {address: name for name in names for address in shown(cluster, name)}
    restart(cluster, "kubelet", forgets=True)
    cluster.kubectl("create", "-f", "-", given=asking("twice", nic=1))
    cluster.wait("the refusal", lambda: any("DEVICE-IN-USE" in it for it in events(cluster, "twice")), 60)
    (address,) = allocated(cluster, "twice")
    (told,) = {it for it in events(cluster, "twice") if "DEVICE-IN-USE" in it}
    print(told)
    assert "is held by another pod" in told
    delete(cluster, holders[address])
    cluster.wait("the pod", lambda: phase(cluster, "twice") == "Running", 90)
    assert shown(cluster, "twice") == {address}
    for name in (*(it for it in names if it != holders[address]), "twice"):
        delete(cluster, name)
