"""What a slice says of a device, within Kubernetes' limits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from nri_rdma.decide.advertised import Advertised, advertised, slice_name
from nri_rdma.model.device import DeviceId, EbpfPrograms, LinkLayer, Node, RdmaDevice, RdmaNetns, VirtualFunction
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from tests.rig.cache import PROJECT
from tests.unit.decide.placing import lost, set_down
from tests.unit.model.hardware import eight, nic, node

OURS = "rdma.noderesource.dev/"
RAILS = Pool(name="rails", modes=(Mode.EXCLUSIVE, Mode.SHARED))


def one(device: RdmaDevice, on: Node | None = None) -> Advertised:
    (told,) = advertised(on or node((device,)), [(device, RAILS)])
    return told


def test_a_device_is_told_with_dranets_names_and_values() -> None:
    told = one(nic(3, numa=1))
    assert told.name == "pci-0000-13-00-3"
    values = {name.removeprefix(OURS): value for name, value in told.attributes.items()}
    expected = {
        "ifName": {"string": "eth3"},
        "mac": {"string": "02:00:00:00:00:03"},
        "mtu": {"int": 1500},
        "state": {"string": "up"},
        "encapsulation": {"string": "ether"},
        "type": {"string": "device"},
        "alias": {"string": ""},
        "pciAddress": {"string": "0000:13:00.3"},
        "numaNode": {"int": 1},
        "virtual": {"bool": False},
        "sriov": {"bool": False},
        "rdma": {"bool": True},
        "rdmaDevice": {"string": "mlx5_3"},
        "pool": {"string": "rails"},
        "active": {"bool": True},
        "linkLayer": {"string": "Ethernet"},
        "protocol": {"string": "roce"},
        "isSriovVf": None,
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:03"},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }
    assert {name: values.get(name) for name in expected} == expected
    assert told.capacity == {f"{OURS}bandwidth": "400G"}


@pytest.mark.parametrize("netns", [RdmaNetns.SHARED, RdmaNetns.EXCLUSIVE])
def test_the_kernels_mode_for_rdma_devices_is_told(netns: RdmaNetns) -> None:
    device = nic(0)
    told = one(device, replace(node((device,)), rdma_netns=netns))
    assert told.attributes[f"{OURS}rdmaNetns"] == {"string": str(netns)}


def test_what_is_not_known_is_left_out() -> None:
    bare = replace(
        nic(0, has_netdev=False, speed_gbps=0), pci=None, pci_root="", vendor="", driver="", id=DeviceId("rxe_0")
    )
    bare = replace(bare, ports=())
    told = one(bare, replace(node((bare,)), rdma_netns=RdmaNetns.NONE))
    names = {name.removeprefix(OURS) for name in told.attributes}
    absent = {
        "ifName",
        "mac",
        "mtu",
        "state",
        "alias",
        "type",
        "pciAddress",
        "pciVendor",
        "rdmaNetns",
        "numaNode",
        "linkLayer",
        "protocol",
    }
    assert not names & (absent | {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"})
    assert (told.name, told.capacity) == ("rxe-0-c9aa4121", {})


def test_a_netdevs_addresses_are_those_that_other_hosts_can_send_to_as_many_as_an_attribute_holds() -> None:
    v4 = ("10.0.0.2/24", "169.254.0.1/16", "10.0.0.10/24", "127.0.0.2/8", "224.0.0.9/32", "255.255.255.255/32")
    long = tuple(f"fd00:1111:2222:3333:4444:5555:6666:{number}/128" for number in range(3))
    values = _of_netdev(addresses=(*v4, *long, "fe80::1/64", "::1/128"))
    assert values["ipv4"] == {"string": "10.0.0.10/24,10.0.0.2/24"}
    assert values["ipv6"] == {"string": "fd00:1111:2222:3333:4444:5555:6666:0/128"}
    both = _of_netdev(addresses=("10.0.0.2/24", "fd01::1/64"))
    assert (both["ipv4"], both["ipv6"]) == ({"string": "10.0.0.2/24"}, {"string": "fd01::1/64"})
    full = ("fd00:1111:2222:3333:4444:5555:6666:0/128", "fd01:1111:2222:3::7/128")  # 64 characters with the comma
    assert _of_netdev(addresses=full)["ipv6"] == {"string": ",".join(full)}
    none = _of_netdev(addresses=("fe80::1/64",))
    assert not {"ipv4", "ipv6"} & set(none)


def test_a_virtual_function_is_told_as_one_with_its_physical_function() -> None:
    parent = PciAddress(0, 0x13, 0, 0)
    told = one(replace(nic(3), virtual=VirtualFunction(pf=parent, number=0))).attributes
    assert (told[f"{OURS}isSriovVf"], told[f"{OURS}physicalFunction"]) == ({"bool": True}, {"string": "0000:13:00.0"})


def test_a_netdev_is_told_with_its_kind_and_alias() -> None:
    values = _of_netdev(kind="ipoib", alias="rail 3")
    assert (values["type"], values["alias"]) == ({"string": "ipoib"}, {"string": "rail 3"})
    (alias,) = _of_netdev(alias="\udcff" + "\u00e4" * 40)["alias"].values()
    assert alias == "?" + "\u00e4" * 31


def test_a_netdev_is_up_when_it_carries_data() -> None:
    device = nic(0)
    silent = replace(device, ports=(replace(device.ports[0], state="DOWN"),))
    off = replace(device, netdevs=(replace(device.netdevs[0], up=False),))
    assert [one(it).attributes[f"{OURS}state"]["string"] for it in (device, silent, off)] == ["up", "down", "down"]


def test_the_programs_on_a_netdev_are_told_by_their_names() -> None:
    values = _of_netdev(programs=EbpfPrograms(filters=("prog.o:[classifier]", "count"), tcx=("handle_ingress",)))
    assert values["ebpf"] == {"bool": True}
    assert values["tcFilterNames"] == {"string": "prog.o:[classifier],count"}
    assert values["tcxProgramNames"] == {"string": "handle_ingress"}
    nameless = _of_netdev(programs=EbpfPrograms(tcx=("",)))
    assert (nameless["ebpf"], nameless.get("tcxProgramNames")) == ({"bool": True}, None)
    none = _of_netdev(programs=EbpfPrograms())
    assert none["ebpf"] == {"bool": False}
    assert not none.keys() & {"tcFilterNames", "tcxProgramNames"}


def _of_netdev(**differences: Any) -> dict[str, Any]:
    device = nic(0)
    told = one(replace(device, netdevs=(replace(device.netdevs[0], **differences),)))
    return {name.removeprefix(OURS): value for name, value in told.attributes.items()}


def test_a_function_that_can_have_virtual_ones_says_how_many_it_has_also_none() -> None:
    told = one(replace(nic(0), max_vf_count=8)).attributes
    assert (told[f"{OURS}sriov"], told[f"{OURS}sriovVfs"]) == ({"bool": True}, {"int": 0})
    assert f"{OURS}sriovVfs" not in one(nic(0)).attributes


def rich(**more: Any) -> RdmaDevice:
    """A device that has all that any device can have, with names that are too long."""
    device = nic(0, numa=0, link_layer=LinkLayer.INFINIBAND)
    netdev = replace(
        device.netdevs[0],
        name="i" * 80,
        mac=":".join(["80"] * 20),
        kind="ipoib",
        alias="a" * 100,
        addresses=("10.0.0.1/24", "fd00::1/64"),
        programs=EbpfPrograms(filters=("f" * 100,), tcx=("t" * 15,) * 20),
    )
    found = replace(device, name="m" * 100, netdevs=(netdev,), device_id="1023", subsystem="0001")
    return replace(found, **more)


@pytest.mark.parametrize(
    "device",
    [rich(max_vf_count=16), rich(virtual=VirtualFunction(pf=PciAddress(0, 0x10, 0, 0), number=7))],
    ids=["physical", "virtual"],
)
def test_the_richest_device_is_within_the_limits_of_kubernetes(device: RdmaDevice) -> None:
    told = one(device)
    assert len(told.attributes) <= 31
    assert len(told.capacity) <= 1
    assert len(told.name) <= 63
    for value in told.attributes.values():
        ((kind, content),) = value.items()
        assert kind in {"string", "int", "bool"}
        assert kind != "string" or 0 < len(str(content)) <= 64
    assert told.attributes[f"{OURS}encapsulation"] == {"string": "infiniband"}


def test_the_documentation_lists_what_devices_are_told_with() -> None:
    page = (PROJECT / "docs/claims.md").read_text().partition("## What the scheduler knows")[2]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall("`([^`]+)`", row)]
    virtual = rich(virtual=VirtualFunction(pf=PciAddress(0, 0x10, 0, 0), number=7))
    told = {*one(rich(max_vf_count=16)).attributes, *one(virtual).attributes}
    told_names = sorted(name.removeprefix(OURS) for name in told)
    assert sorted(listed) == told_names, "docs/claims.md, What the scheduler knows: give each attribute its row"
    assert len(listed) <= 31  # and one capacity


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("0000:8a:00.0", "pci-0000-8a-00-0"),
        ("0000:8A:00.0", "pci-0000-8a-00-0"),
        ("rxe0", "rxe0"),
        ("x" * 63, "x" * 63),
    ],
)
def test_a_name_in_slices_is_a_dns_label(told: str, name: str) -> None:
    assert slice_name(DeviceId(told)) == name


def test_devices_whose_names_differ_only_in_what_a_label_lacks_have_names_of_their_own() -> None:
    told = ("rxe-0", "rxe_0", "rxe.0", "_rxe_0_", "RXE_0", "x" * 64, "x" * 65, "x" * 54 + "_" * 10)
    names = {slice_name(DeviceId(it)) for it in told}
    assert len(names) == len(told)
    assert all(re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", it) and len(it) <= 63 for it in names)


def test_devices_are_told_by_their_index() -> None:
    on = eight()
    told = advertised(on, [(device, RAILS) for device in reversed(on.devices)])
    assert [it.attributes[f"{OURS}rdmaDevice"]["string"] for it in told] == [f"mlx5_{number}" for number in range(8)]


def test_devices_that_cannot_carry_data_come_last_because_the_scheduler_takes_the_first() -> None:
    on = lost(eight(), 0, 2)
    told = advertised(on, [(device, RAILS) for device in on.devices])
    numbers = (1, 3, 4, 5, 6, 7, 0, 2)
    assert [it.attributes[f"{OURS}rdmaDevice"]["string"] for it in told] == [f"mlx5_{number}" for number in numbers]


@pytest.mark.parametrize(("modes", "order"), [((Mode.EXCLUSIVE,), "0,1,2"), (RAILS.modes, "0,2,1")])
def test_a_device_that_is_down_with_its_netdev_is_last_unless_every_claim_of_its_pool_raises_it(
    modes: tuple[Mode, ...], order: str
) -> None:
    on, pool = set_down(eight(), 1), replace(RAILS, modes=modes)
    told = advertised(on, [(device, pool) for device in on.devices[:3]])
    assert [it.name for it in told] == [slice_name(nic(int(number)).id) for number in order.split(",")]
