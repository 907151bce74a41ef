"""What the inventory says of an RDMA device that processes and sockets of the host use."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket
from nri_rdma.model.nldev import ObjectKind
from tests.rig.deadline import wait_until

NAME, NETDEV, ADDRESS = "lab_use", "use0", "198.19.7.1"


@pytest.fixture(scope="module")
def index(rdma_device: str) -> Iterator[int]:
    """A soft-RoCE device of the test's own, on a veth with an address."""
    run(f"ip link add {NETDEV} type veth peer name use1")
    run(f"ip address add {ADDRESS}/24 dev {NETDEV}")
    run(f"ip link set {NETDEV} up")
    run("ip link set use1 up")
    run(f"rdma link add {NAME} type rxe netdev {NETDEV}")
    wait_until(lambda: told()["state"] == "ACTIVE", "an active port", seconds=30)
    yield next(item["ifindex"] for item in json.loads(run("rdma -j dev")) if item["ifname"] == NAME)
    run(f"rdma link delete {NAME}")
    run(f"ip link delete {NETDEV}")


def run(command: str) -> str:
    return subprocess.run(command.split(), stdout=subprocess.PIPE, text=True, check=True).stdout


def told() -> dict[str, Any]:
    """The device in the document of `nri-rdma inventory`; run as a user does."""
    document = json.loads(run(f"{sys.executable} -m nri_rdma inventory -o json"))
    device: dict[str, Any] = next(device for device in document["devices"] if device["name"] == NAME)
    return device


def test_what_the_core_and_the_driver_hold_on_an_idle_device_is_no_use(index: int) -> None:
    device = told()
    assert (device["kernel_index"], device["in_use"], device["used_by_some"]) == (index, [], [])


def test_a_process_that_has_it_open_is_told_by_number_and_name(index: int) -> None:
    with subprocess.Popen(["ibv_asyncwatch", "-d", NAME], stdout=subprocess.PIPE) as holder:
        try:
            with RdmaSocket() as sock:
                wait_until(lambda: bool(sock.objects(index, ObjectKind.CTX)), "the context to be there", seconds=10)
            assert told()["used_by_some"] == [f"process {holder.pid} (ibv_asyncwatch) has it open"]
        finally:
            holder.kill()


def test_a_socket_on_its_address_is_told_by_port(index: int) -> None:
    with socket.create_server((ADDRESS, 4420)):
        assert told()["used_by_some"] == [f"{NETDEV} has the address {ADDRESS} of 1 host socket (tcp port 4420)"]


def test_the_kernels_own_objects_are_those_among_all(index: int) -> None:
    with RdmaSocket() as sock:
        for kind in (ObjectKind.QP, ObjectKind.CM_ID, ObjectKind.MR):
            every = sock.objects(index, kind)
            assert sock.kernel_objects(index, kind) == tuple(item for item in every if item.kernel_user)
        assert sock.kernel_objects(index, ObjectKind.QP)
