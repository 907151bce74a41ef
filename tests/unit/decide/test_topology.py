"""Distances in the words of nvidia-smi topo -m."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.topology import FARTHEST_ALIGNED, Distance, distance, rails, roots
from nri_rdma.model.device import VirtualFunction
from tests.unit.model.hardware import gpu, nic


@dataclass(frozen=True)
class At:
    """A place in the PCI tree: an absolute path such as root/port/function."""

    path: str
    numa_node: int | None = None

    @property
    def pci_root(self) -> str:
        return self.path.split("/", maxsplit=1)[0]

    @property
    def pci_path(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")) if self.path else ()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("r/port/up/down1/nic", "r/port/up/down2/gpu", Distance.PIX),
        ("r/port/nic.0", "r/port/nic.1", Distance.PIX),
        ("r/port/up/down1/nic", "r/port/up/down2/up2/down3/gpu", Distance.PXB),
        ("r/port/up/down1/up2/down3/nic", "r/port/up/down2/up4/down5/gpu", Distance.PXB),
        ("r/port1/nic", "r/port2/gpu", Distance.PHB),
        ("r/nic", "r/gpu", Distance.PHB),
        ("r1/port/nic", "r2/port/gpu", Distance.SYS),
        ("", "", Distance.SYS),
        ("", "r/port/gpu", Distance.SYS),
    ],
)
def test_the_path_decides_the_distance(one: str, other: str, expected: Distance) -> None:
    assert distance(At(one), At(other)) is expected


def test_a_path_may_leave_the_root_out() -> None:
    devices = [replace(nic(number, root=0), pci_path=("0000:00:01.0", f"0000:10:00.{number}")) for number in (0, 1)]
    assert distance(devices[0], devices[1]) is Distance.PIX
    assert distance(devices[0], gpu(0)) is Distance.PHB


def test_two_roots_of_one_numa_node_are_a_node_apart() -> None:
    assert distance(At("r1/p/nic", 0), At("r2/p/gpu", 0)) is Distance.NODE


def test_two_numa_nodes_are_a_system_apart() -> None:
    assert distance(At("r1/p/nic", 0), At("r2/p/gpu", 1)) is Distance.SYS


def test_an_unknown_numa_node_is_near_to_nothing() -> None:
    assert distance(At("r1/p/nic"), At("r2/p/gpu")) is Distance.SYS


def test_the_path_is_nearer_than_the_numa_node_says() -> None:
    assert distance(At("r/p1/nic", 0), At("r/p2/gpu", 1)) is Distance.PHB


def test_a_nic_and_a_gpu_of_one_root_are_a_host_bridge_apart() -> None:
    assert distance(nic(1), gpu(1)) is Distance.PHB


def test_nearer_is_smaller() -> None:
    assert sorted(Distance) == [Distance.PIX, Distance.PXB, Distance.PHB, Distance.NODE, Distance.SYS]


_PLACES = st.builds(
    At,
    st.lists(st.sampled_from("abc"), max_size=5).map("/".join),
    st.none() | st.integers(0, 1),
)


@given(_PLACES, _PLACES)
def test_the_distance_is_the_same_both_ways(one: At, other: At) -> None:
    assert distance(one, other) is distance(other, one)


@given(_PLACES, st.lists(_PLACES, max_size=4))
def test_a_device_below_a_root_complex_of_some_is_next_to_one_of_them(one: At, others: list[At]) -> None:
    assert (one.pci_root in roots(others)) is any(distance(one, other) <= FARTHEST_ALIGNED for other in others)


def test_a_rail_is_the_rank_of_an_adapters_port_and_soft_devices_have_none() -> None:
    first, second = nic(0), nic(1)
    assert second.pci is not None
    function = replace(nic(2), virtual=VirtualFunction(pf=second.pci, number=0))
    soft = replace(nic(3), pci=None)
    assert rails((soft, function, second, first)) == {first.id: 0, second.id: 1, function.id: 1}
