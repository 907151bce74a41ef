"""What the hardware says of itself: protocols, uses, ties, speeds, and which device has an identity."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.device import CharKind, DeviceId, LinkLayer, Netdev, Port, Protocol, RdmaDevice
from tests.unit.model.hardware import TIE, eight, nic, node, tied

ETHERNET, INFINIBAND = LinkLayer.ETHERNET, LinkLayer.INFINIBAND


def port(number: int, link_layer: LinkLayer = ETHERNET, speed_gbps: int = 0) -> Port:
    return Port(number=number, link_layer=link_layer, state="ACTIVE", speed_gbps=speed_gbps)


def with_ports(*ports: Port, node_type: str = "CA") -> RdmaDevice:
    return replace(nic(0), ports=ports, node_type=node_type)


@pytest.mark.parametrize(
    ("node_type", "link_layers", "protocol"),
    [
        ("CA", (INFINIBAND,), Protocol.IB),
        ("CA", (ETHERNET,), Protocol.ROCE),
        ("CA", (), None),
        ("RNIC", (ETHERNET,), Protocol.IWARP),
        ("RNIC", (), Protocol.IWARP),
        ("usNIC", (ETHERNET,), None),
        ("usNIC UDP", (ETHERNET,), None),
        ("unspecified", (ETHERNET,), None),
        ("CA", (INFINIBAND, ETHERNET), Protocol.IB),
        ("CA", (ETHERNET, INFINIBAND), Protocol.ROCE),
    ],
)
def test_the_protocol_is_that_of_the_node_type_and_the_first_port(
    node_type: str, link_layers: tuple[LinkLayer, ...], protocol: Protocol | None
) -> None:
    ports = (port(number, link_layer) for number, link_layer in enumerate(link_layers, 1))
    device = with_ports(*ports, node_type=node_type)
    assert device.protocol is protocol
    assert device.link_layer is (link_layers[0] if link_layers else None)


@given(st.lists(st.integers(0, 1600)))
def test_the_speed_is_that_of_the_fastest_port_and_0_without_any(speeds: list[int]) -> None:
    device = with_ports(*(port(number, speed_gbps=speed) for number, speed in enumerate(speeds, 1)))
    assert device.speed_gbps == max([0, *speeds])


def test_uses_are_those_of_the_host_and_those_that_may_be_a_pods() -> None:
    assert nic(0).uses == ()
    device = replace(nic(0, in_use=("eth0 is in a bond",)), used_by_some=("ib_write_bw has it open",))
    assert device.uses == ("eth0 is in a bond", "ib_write_bw has it open")


def test_ties_name_the_netdev_and_the_reason_and_are_no_uses() -> None:
    device = tied(nic(0))
    assert device.ties == (TIE,)
    assert device.uses == ()
    assert nic(0).ties == ()


def test_ties_are_those_of_all_netdevs_in_their_order() -> None:
    netdevs = tuple(
        Netdev(name=name, ifindex=at, mac="02:00:00:00:00:00", mtu=1500, up=True, unreturnable=reasons)
        for at, (name, reasons) in enumerate((("eth0", ("a", "b")), ("eth1", ()), ("eth2", ("c",))), 1)
    )
    assert replace(nic(0), netdevs=netdevs).ties == ("eth0 a", "eth0 b", "eth2 c")


@pytest.mark.parametrize(
    ("has_address", "driver", "is_soft"),
    [(False, "", True), (False, "efa", False), (True, "", False), (True, "mlx5_core", False)],
)
def test_a_device_without_address_and_driver_is_soft(has_address: bool, driver: str, is_soft: bool) -> None:
    device = nic(0)
    assert replace(device, pci=device.pci if has_address else None, driver=driver).is_soft is is_soft


@pytest.mark.parametrize(
    ("device", "lacks_netdev"),
    [
        (nic(0), False),
        (nic(0, has_netdev=False), True),
        (nic(0, link_layer=INFINIBAND), False),
        (nic(0, link_layer=INFINIBAND, has_netdev=False), False),
        (replace(nic(0, has_netdev=False), ports=()), True),
    ],
    ids=["Ethernet", "Ethernet without", "InfiniBand", "InfiniBand without", "no ports"],
)
def test_only_infiniband_needs_no_netdev(device: RdmaDevice, lacks_netdev: bool) -> None:
    assert device.lacks_netdev is lacks_netdev


def test_a_node_finds_each_device_by_its_identity_and_no_other() -> None:
    machine = eight()
    assert [machine.device(device.id) for device in machine.devices] == list(machine.devices)
    assert machine.device(DeviceId("mlx5_0")) is None
    assert node().device(machine.devices[0].id) is None


def test_a_kind_of_character_device_is_found_under_its_word() -> None:
    """The kind has a hash of its own; a set of words must still hold the kinds, and the other way round."""
    words = {kind.value for kind in CharKind}
    assert words == {"uverbs", "umad", "issm", "rdma_cm"}
    assert set(CharKind) == words
    assert all(hash(kind) == hash(kind.value) for kind in CharKind)
