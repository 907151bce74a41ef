"""What the product says of the machine, beside what lspci, ip and rdma say, and what it was built from."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.guest import lspci
from tests.lab.guest.conftest import MACHINE
from tests.lab.machine import MODELS
from tests.rig.node import Node, RdmaDevice

pytestmark = [pytest.mark.machine("eight", "sriov"), pytest.mark.usefixtures("rdma_devices")]
DISPLAY_CLASS = "0x0380"


@pytest.fixture(scope="module")
def description() -> Node:
    """What the machine was built from."""
    return MODELS[MACHINE].node


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The snapshot of the machine."""
    file = tmp_path_factory.mktemp("saved") / "node.json"
    nri_rdma("snapshot", "-o", str(file))
    document: dict[str, Any] = json.loads(file.read_text())
    return document


@pytest.fixture
def used_by_the_host(description: Node) -> Iterator[tuple[str, str, str]]:
    """The first three netdevs with a child, a bridge above and a default route."""
    child, port, route = (netdev.name for netdev in description.netdevs[:3])
    changes = (
        f"ip link add planted0 link {child} type macvlan",
        "ip link add planted1 type bridge",
        f"ip link set {port} master planted1",
        f"ip -6 route add default dev {route}",
    )
    for change in changes:
        subprocess.run(change.split(), check=True)
    yield child, port, route
    for undo in (f"ip -6 route del default dev {route}", "ip link delete planted1", "ip link delete planted0"):
        subprocess.run(undo.split(), check=True)


def nri_rdma(*arguments: str) -> str:
    """What the command prints; run as a user does."""
    command = [sys.executable, "-m", "nri_rdma", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def told_by_inventory() -> dict[str, Any]:
    """Its document, in the helper's form."""
    document = json.loads(nri_rdma("inventory", "-o", "json"))
    return {
        "devices": [_told(device) for device in document["devices"]],
        "gpus": {gpu["pci"]: (gpu["pci_root"], gpu["pci_path"], gpu["numa_node"]) for gpu in document["gpus"]},
    }


def _told(device: dict[str, Any]) -> dict[str, Any]:
    (netdev,) = device["netdevs"]
    return {
        "name": device["name"],
        "guid": device["node_guid"],
        "link_layer": device["link_layer"],
        "driver": device["driver"],
        "place": (device["pci_root"], device["pci_path"], device["numa_node"]),
        "netdev": (netdev["name"], netdev["ifindex"], netdev["mac"], netdev["mtu"]),
        "nodes": {node["path"]: (node["major"], node["minor"]) for node in device["char_devices"]},
        "in_use": bool(device["in_use"]),
    }


def test_inventory_says_what_lspci_ip_and_rdma_say() -> None:
    assert told_by_inventory() == lspci.node()


def test_it_says_of_the_same_devices_that_the_host_uses_them(used_by_the_host: tuple[str, str, str]) -> None:
    told = told_by_inventory()
    assert told == lspci.node()
    assert [device["netdev"][0] for device in told["devices"] if device["in_use"]] == list(used_by_the_host)


def test_every_function_of_the_description_is_there_as_lspci_sees_it(description: Node) -> None:
    seen = lspci.functions()
    for function in description.functions:
        record = seen[function.address]
        told = (record["Class"], record["Vendor"], record["Device"], record.get("Driver", ""), record.get("NUMANode"))
        ids = (function.pci_class[2:6], function.vendor[2:], function.device[2:], function.driver)
        assert told == (*ids, str(function.numa_node))
        root, path, _ = lspci.place(f"/sys/bus/pci/devices/{function.address}")
        assert [root, *path] == way_to(function.address, description)


@pytest.mark.machine("sriov")
def test_both_drivers_with_virtual_functions_have_as_many_as_described(description: Node) -> None:
    physical = {function.address: function.sriov_numvfs for function in description.functions}
    shown = subprocess.run(["ip", "-j", "-d", "link"], stdout=subprocess.PIPE, text=True, check=True).stdout
    seen = {link["ifname"]: [it["address"] for it in link.get("vfinfo_list", ())] for link in json.loads(shown)}
    for netdev in description.netdevs:
        wanted = netdev.simulated.sriov_numvfs if netdev.simulated else physical[netdev.function]
        assert len(seen[netdev.name]) == wanted
    assert seen["pf0"] == [netdev.mac for netdev in description.netdevs if netdev.name in {"pf0v0", "pf0v1"}]


def test_the_snapshot_has_the_gpus_that_the_machine_was_built_with(description: Node, saved: dict[str, Any]) -> None:
    described = [function for function in description.functions if function.pci_class.startswith(DISPLAY_CLASS)]
    assert [(gpu["pci"], gpu["numa_node"], gpu["vendor"]) for gpu in saved["gpus"]] == [
        (gpu.address, gpu.numa_node, gpu.vendor[2:]) for gpu in described
    ]
    assert [[gpu["pci_root"], *gpu["pci_path"]] for gpu in saved["gpus"]] == [
        way_to(gpu.address, description) for gpu in described
    ]


def test_the_snapshot_has_the_rdma_devices_that_the_machine_was_built_with(
    description: Node, saved: dict[str, Any]
) -> None:
    assert [identity(device) for device in saved["devices"]] == [
        (device.name, device.node_guid, device.node_type.split(": ")[1]) for device in description.rdma
    ]
    for device, described in zip(saved["devices"], description.rdma, strict=True):
        assert [(port["number"], port["link_layer"], port["state"]) for port in device["ports"]] == [
            (port.number, port.link_layer, port.state.split(": ")[1]) for port in described.ports
        ]
        assert {(it["path"], f"{it['major']}:{it['minor']}", it["mode"]) for it in device["char_devices"]} == {
            (f"/dev/infiniband/{it.name}", it.dev, it.mode) for it in described.char_devices
        } | issm_nodes(device["name"])
    assert saved["rdma_netns"] == description.rdma_netns_mode


def issm_nodes(device: str) -> set[tuple[str, str, int]]:
    """Up to 6.1 soft devices have them; the descriptions are of newer kernels."""
    return {
        (f"/dev/infiniband/{folder.name}", (folder / "dev").read_text().strip(), 0o600)
        for folder in Path("/sys/class/infiniband_mad").glob("issm*")
        if (folder / "ibdev").read_text().strip() == device
    }


def test_in_the_snapshot_each_device_is_on_its_netdev_and_where_that_one_is(
    description: Node, saved: dict[str, Any]
) -> None:
    for device, described in zip(saved["devices"], description.rdma, strict=True):
        netdev = description.netdev_of(described)
        assert netdev is not None
        assert [(it["name"], it["mac"], it["mtu"]) for it in device["netdevs"]] == [
            (netdev.name, netdev.mac, netdev.mtu)
        ]
        assert [device["pci_root"], *device["pci_path"]] == (way_to(netdev.function, description) or [""])
        assert device["numa_node"] == numa_node(described, description)


def test_the_inventory_of_the_snapshot_is_the_inventory(saved: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps(saved))
    told = json.loads(nri_rdma("inventory", "--snapshot", str(file), "-o", "json"))
    read_from, saved_on = told["notes"]
    assert told == {**saved, "notes": [read_from, saved_on]}
    assert read_from == f"Read from the snapshot {file}."
    assert re.fullmatch(rf"Saved on {os.uname().nodename}, \d{{4}}-\d\d-\d\d \d\d:\d\d UTC\.", saved_on)


def identity(device: dict[str, Any]) -> tuple[str, str, str]:
    return device["name"], device["node_guid"], device["node_type"]


def way_to(address: str, description: Node) -> list[str]:
    """Root, bridges and function, as they are described; empty for what is not on PCI."""
    parents = {function.address: function.under for function in description.functions}
    way = [address] if address else []
    while way and way[0] in parents:
        way.insert(0, parents[way[0]])
    return way


def numa_node(device: RdmaDevice, description: Node) -> int | None:
    netdev = description.netdev_of(device)
    assert netdev is not None
    places = {function.address: function.numa_node for function in description.functions}
    return places.get(netdev.function)
