"""Which devices a selector takes: each condition against hardware that fulfils it and hardware that does not."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.device import LinkLayer, Protocol, RdmaDevice, VirtualFunction
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.selector import FunctionsOf, Selector
from tests.unit.model.hardware import nic

PF = PciAddress(0, 0x41, 0, 0)


def vf(number: int, pf: PciAddress = PF, pf_netdevs: tuple[str, ...] = ("ens1f0",)) -> RdmaDevice:
    return replace(nic(number), virtual=VirtualFunction(pf=pf, number=number, pf_netdevs=pf_netdevs))


def partitioned(*keys: int) -> RdmaDevice:
    device = nic(0, link_layer=LinkLayer.INFINIBAND)
    return replace(device, ports=(replace(device.ports[0], pkeys=keys),))


def spoken(node_type: str, link_layer: LinkLayer = LinkLayer.ETHERNET) -> RdmaDevice:
    return replace(nic(0, link_layer=link_layer), node_type=node_type)


def functions(function: str, *numbers: tuple[int, int]) -> tuple[FunctionsOf, ...]:
    return (FunctionsOf(function=function, numbers=numbers),)


INFINIBAND = nic(0, link_layer=LinkLayer.INFINIBAND)
CASES: tuple[tuple[str, Selector, RdmaDevice, RdmaDevice], ...] = (
    ("name", Selector(device=("mlx5_0",)), nic(0), nic(1)),
    ("netdev", Selector(netdev=("eth0",)), nic(0), nic(1)),
    ("netdev that is elsewhere", Selector(netdev=("eth0",)), nic(0), nic(0, has_netdev=False)),
    ("address", Selector(pci=(PciAddress(0, 0x10, 0, 0),)), nic(0), nic(1)),
    ("vendor", Selector(vendor=("15b3",)), nic(0), nic(0, vendor="14e4")),
    ("device id", Selector(device_id=("101e",)), replace(nic(0), device_id="101e"), replace(nic(0), device_id="101d")),
    ("driver", Selector(driver=("mlx5_core",)), nic(0), replace(nic(0), driver="irdma")),
    ("physical function by netdev", Selector(pf_name=functions("eth0")), nic(0), nic(1)),
    ("all its virtual functions", Selector(pf_name=functions("ens1f0")), vf(3), vf(3, pf_netdevs=("ens2f0",))),
    ("some of them", Selector(pf_name=functions("ens1f0", (0, 3), (7, 7))), vf(7), vf(4)),
    ("a range is not the physical function", Selector(pf_name=functions("eth0", (0, 3))), vf(0, PF, ("eth0",)), nic(0)),
    ("root by physical function", Selector(root_device=functions(str(PF))), vf(3), vf(3, PciAddress(0, 0x42, 0, 0))),
    ("root with a range", Selector(root_device=functions(str(PF), (1, 2))), vf(2), vf(3)),
    ("root port", Selector(root_device=functions("0000:00:01.0")), nic(0), nic(1)),
    ("root complex", Selector(root_device=functions("pci0000:00")), nic(0), nic(1)),
    ("root that is the function", Selector(root_device=functions("0000:10:00.0")), nic(0), nic(1)),
    ("link layer", Selector(link_layer=(LinkLayer.INFINIBAND,)), INFINIBAND, nic(0)),
    ("InfiniBand", Selector(protocol=(Protocol.IB,)), INFINIBAND, nic(0)),
    ("RoCE", Selector(protocol=(Protocol.ROCE,)), nic(0), INFINIBAND),
    ("iWARP", Selector(protocol=(Protocol.IWARP,)), spoken("RNIC"), spoken("unspecified")),
    ("partition", Selector(pkey=(0x8001,)), partitioned(0xFFFF, 0x8001), partitioned(0xFFFF)),
    ("partition, of a limited member", Selector(pkey=(0x8001,)), partitioned(0x0001), partitioned(0x0002)),
    ("NUMA node", Selector(numa_node=(1,)), nic(0, numa=1), nic(0, numa=0)),
    ("speed", Selector(speed_gbps=(100,)), nic(0, speed_gbps=100), nic(0, speed_gbps=200)),
    ("least speed", Selector(min_speed_gbps=100), nic(0, speed_gbps=100), nic(0, speed_gbps=50)),
    ("all conditions", Selector(vendor=("15b3",), device=("mlx5_0",)), nic(0), nic(0, vendor="14e4")),
    ("any value", Selector(device=("mlx5_1", "mlx5_0")), nic(0), nic(2)),
)


@pytest.mark.parametrize(("selector", "taken", "left"), [it[1:] for it in CASES], ids=[it[0] for it in CASES])
def test_a_condition_takes_what_fulfils_it_and_leaves_the_rest(
    selector: Selector, taken: RdmaDevice, left: RdmaDevice
) -> None:
    assert (selector.selects(taken), selector.selects(left)) == (True, False)


def test_every_condition_has_a_case() -> None:
    tried = {item.name for _, selector, _, _ in CASES for item in fields(Selector) if getattr(selector, item.name)}
    assert tried == {item.name for item in fields(Selector)}


def test_no_condition_takes_everything() -> None:
    assert Selector().selects(nic(0))
    assert str(Selector()) == "anything"


def test_what_does_not_know_a_value_does_not_fulfil_a_condition_on_it() -> None:
    soft = replace(nic(0), pci=None, pci_root="", pci_path=(), vendor="", device_id="", driver="", ports=())
    assert not Selector(numa_node=(0,)).selects(soft)
    assert not Selector(root_device=functions("None")).selects(soft)
    assert not Selector(protocol=tuple(Protocol)).selects(soft)
    assert not Selector(min_speed_gbps=1).selects(soft)


@pytest.mark.parametrize(
    ("selector", "device", "may"),
    [
        (Selector(netdev=("eth0",)), nic(0, has_netdev=False), True),
        (Selector(netdev=("eth0",)), nic(1), False),
        (Selector(netdev=("eth0",), vendor=("14e4",)), nic(0, has_netdev=False), False),
        (Selector(pf_name=functions("eth0")), nic(0, has_netdev=False), True),
        (Selector(pf_name=functions("ens1f0")), vf(0, pf_netdevs=()), True),
        (Selector(pf_name=functions("ens1f0")), replace(vf(0, pf_netdevs=("ens2f0",)), netdevs=()), False),
        (Selector(netdev=("eth0",)), nic(0, has_netdev=False, link_layer=LinkLayer.INFINIBAND), False),
    ],
)
def test_a_name_that_is_not_known_may_be_the_one_that_is_left_out(
    selector: Selector, device: RdmaDevice, may: bool
) -> None:
    assert selector.may_select(device) is may
    assert not selector.selects(device)


def test_a_selector_reads_as_a_sentence() -> None:
    selector = Selector(vendor=("15b3", "14e4"), pf_name=functions("ens1f0", (0, 3), (7, 7)), pkey=(0x1,))
    assert str(selector) == "vendor 15b3 or 14e4 and pfName ens1f0#0-3,7 and pkey 0x0001"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair))), min_size=1))
def test_a_range_has_its_ends_and_all_between(ranges: list[tuple[int, int]]) -> None:
    selector = Selector(pf_name=(FunctionsOf(function="ens1f0", numbers=tuple(ranges)),))
    meant = {number for first, last in ranges for number in range(first, last + 1)}
    assert {number for number in range(50) if selector.selects(vf(number))} == meant
