"""The distances of everything to everything, as `nvidia-smi topo -m` has them."""

from __future__ import annotations

from collections.abc import Sequence

from nri_rdma.decide.topology import Located, distance

SELF = "X"
"""What stands on the diagonal."""


def matrix_of(items: Sequence[Located]) -> tuple[tuple[str, ...], ...]:
    """A row for each item with its class to every item, in their order."""
    return tuple(
        tuple(SELF if row == column else distance(one, other).name for column, other in enumerate(items))
        for row, one in enumerate(items)
    )
