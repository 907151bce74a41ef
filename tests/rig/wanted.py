"""What a container is to have of a device, and what it lacks of it when somebody looks inside."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.rig.expect import Seen, described_mac, tree_number
from tests.rig.fabric import Fabric

OPENS = """
(: <>/dev/infiniband/uverbs{number}) 2>&1
mknod /tmp/other c 231 {other} && (: <>/tmp/other) 2>&1
true
"""
"""No driver answers to these numbers on a described node: what may be opened fails in other words than what may not."""
_FORBIDDEN = "Operation not permitted"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The device of that number of the node "eight", its netdev if it `moves`, and the variable with its name."""

    number: int
    moves: bool = True
    variable: str

    @property
    def things(self) -> int:
        """How many things `lacking` looks for."""
        return 2 + self.moves

    @property
    def opens(self) -> str:
        """A script that opens the device's node, and makes and opens one of another device; it prints two lines."""
        return OPENS.format(number=self.number, other=192 + (self.number + 1) % 8)


def lacking(wanted: Wanted, seen: Seen, opened: Sequence[str], node: Fabric) -> set[str]:
    """Return what a container lacks, by what was seen in it and the lines of `opens`. Fails where it has what it did
    not ask for."""
    nodes = {name: tree_number(node, name) for name in (f"uverbs{wanted.number}", "rdma_cm")}
    assert seen.nodes.items() <= nodes.items(), seen.nodes
    assert len(opened) == 2, opened
    assert _FORBIDDEN in opened[1], opened
    lacks = set()
    if seen.nodes != nodes or _FORBIDDEN in opened[0]:
        lacks.add("nodes")
    if wanted.moves and described_mac(node, f"rail{wanted.number}") not in seen.macs.values():
        lacks.add("netdev")
    if seen.env.get(wanted.variable) != f"mlx5_{wanted.number}":
        lacks.add("environment")
    return lacks


def assert_nothing(seen: Seen) -> None:
    """Fail where a container that asks for nothing has something."""
    assert seen.nodes == {}
    assert not any(name.startswith(("NCCL", "UCX", "RDMA")) for name in seen.env)
