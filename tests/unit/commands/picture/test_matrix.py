"""The matrix of distances has the classes that nvidia-smi has."""

from __future__ import annotations

from nri_rdma.commands.picture.matrix import matrix_of
from nri_rdma.model.pci import PciAddress
from tests.unit.commands.picture.machines import at, at_gpu

_SWITCH = ("pci0000:10", "0000:11:00.0")


def test_every_pair_has_its_class_both_ways_and_the_diagonal_an_x() -> None:
    """As nvidia-smi's legend has it: PIX is one switch, PXB several, PHB a host bridge, NODE a NUMA node, SYS all."""
    gpu = at_gpu(PciAddress(0, 0x20, 0, 0), (*_SWITCH, "0000:12:00.0", "0000:20:00.0"), numa=0)
    beside = at(0, PciAddress(0, 0x21, 0, 0), (*_SWITCH, "0000:13:00.0", "0000:21:00.0"), numa=0)
    behind = at(
        1, PciAddress(0, 0x31, 0, 0), (*_SWITCH, "0000:14:00.0", "0000:15:00.0", "0000:16:00.0", "0000:31:00.0"), numa=0
    )
    same_root = at(2, PciAddress(0, 0x41, 0, 0), ("pci0000:10", "0000:18:00.0", "0000:41:00.0"), numa=0)
    same_node = at(3, PciAddress(0, 0x51, 0, 0), ("pci0000:50", "0000:51:00.0"), numa=0)
    far = at(4, PciAddress(0, 0x81, 0, 0), ("pci0000:80", "0000:81:00.0"), numa=1)
    rows = matrix_of((gpu, beside, behind, same_root, same_node, far))
    assert rows[0] == ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
    assert [row[place] for place, row in enumerate(rows)] == ["X"] * 6
    assert rows == tuple(zip(*rows, strict=True))


def test_a_matrix_of_nothing_has_no_rows() -> None:
    assert matrix_of(()) == ()
