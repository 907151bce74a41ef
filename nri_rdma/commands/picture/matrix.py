"""A matrix of PCI distances between all GPUs and RDMA devices, as `nvidia-smi topo -m` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from nri_rdma.decide.topology import Located, distance

SELF = "X"
"""The entry on the diagonal, where an item meets itself."""


def matrix_of(items: Sequence[Located]) -> tuple[tuple[str, ...], ...]:
    """Return a row for each item. The row has the class of the item's distance to every item (such as PIX or SYS), in
    the given order."""
    return tuple(
        tuple(SELF if row == column else distance(one, other).name for column, other in enumerate(items))
        for row, one in enumerate(items)
    )
