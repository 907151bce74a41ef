"""The PCI tree of a node, reduced to what decides distances: NUMA nodes, root complexes and switches.

A bridge is kept only if several cards are below it. Root ports, and bridges that lead to a single card, say no more
about distances than the root complex.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from nri_rdma.commands.picture.view import Adapter, View
from nri_rdma.model.device import Gpu, RdmaDevice


class Level(StrEnum):
    """The level of a branch in the PCI tree: a NUMA node, a PCI root complex, or a PCI bridge or switch."""

    NUMA = "numa"
    ROOT = "root"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A NUMA node, root complex or bridge, with everything directly on it. `name` is "" if it is not known."""

    level: Level
    name: str
    gpus: tuple[Gpu, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    branches: tuple[Branch, ...] = ()

    @property
    def depth(self) -> int:
        """The number of levels of branches below this one."""
        return max((1 + branch.depth for branch in self.branches), default=0)


_Leaf: TypeAlias = Gpu | Adapter
_Way: TypeAlias = tuple[tuple[str, ...], _Leaf]
"""A GPU or adapter with the bridges that lead to it, from the root complex down."""


def tree_of(view: View) -> tuple[Branch, ...]:
    """Return the NUMA nodes by number; the branch for an unknown NUMA node comes last. Their branches are the root
    complexes. Devices that are not on PCI come last in their NUMA node."""
    roots: dict[str, list[_Leaf]] = {}
    leaves: tuple[_Leaf, ...] = (*view.gpus, *view.adapters)
    for leaf in leaves:
        roots.setdefault(_located(leaf).pci_root, []).append(leaf)
    nodes: dict[int | None, list[Branch]] = {}
    for root, below in sorted(roots.items(), key=lambda item: (not item[0], item[0])):
        if root:
            nodes.setdefault(_numa_node(below), []).append(_root(root, below))
            continue
        for leaf in below:
            nodes.setdefault(_located(leaf).numa_node, []).append(_root("", [leaf]))
    return tuple(
        Branch(level=Level.NUMA, name="" if number is None else str(number), branches=tuple(_joined(nodes[number])))
        for number in sorted(nodes, key=lambda number: (number is None, number))
    )


def _located(leaf: _Leaf) -> Gpu | RdmaDevice:
    """Return the object that has the position on the node: the GPU itself, or the adapter's first device."""
    return leaf if isinstance(leaf, Gpu) else leaf.head


def _numa_node(leaves: Iterable[_Leaf]) -> int | None:
    """Return the NUMA node that most of these GPUs and adapters of one root complex report. A root complex is in one
    NUMA node, even if the firmware reports another for some function."""
    numbers = Counter(number for leaf in leaves if (number := _located(leaf).numa_node) is not None)
    return min(numbers, key=lambda number: (-numbers[number], number), default=None)


def _joined(branches: Iterable[Branch]) -> Iterator[Branch]:
    """Yield the branches. All devices that are not on PCI are put together in one branch at the end."""
    off_pci: list[Adapter] = []
    for branch in branches:
        if branch.name:
            yield branch
        else:
            off_pci.extend(branch.adapters)
    if off_pci:
        yield Branch(level=Level.ROOT, name="", adapters=tuple(off_pci))


def _root(root: str, leaves: Iterable[_Leaf]) -> Branch:
    ways = []
    for leaf in leaves:
        path = _located(leaf).pci_path
        ways.append((path[1:-1] if path[:1] == (root,) else path[:-1], leaf))
    return _branch(Level.ROOT, root, ways)


def _branch(level: Level, name: str, ways: list[_Way]) -> Branch:
    """Return a branch with the GPUs and adapters in `ways`, each with the bridges that lead to it. If a bridge leads to
    several cards, these go into a branch of their own."""
    groups: dict[str, list[_Way]] = {}
    direct: list[_Leaf] = []
    for way, leaf in ways:
        if way:
            groups.setdefault(way[0], []).append((way[1:], leaf))
        else:
            direct.append(leaf)
    branches: list[Branch] = []
    for bridge, group in groups.items():
        if len({_card(leaf) for _way, leaf in group}) > 1:
            branches.append(_parting(bridge, group))
        else:
            direct.extend(leaf for _way, leaf in group)
    return Branch(
        level=level,
        name=name,
        gpus=tuple(leaf for leaf in direct if isinstance(leaf, Gpu)),
        adapters=tuple(leaf for leaf in direct if isinstance(leaf, Adapter)),
        branches=tuple(sorted(branches, key=lambda branch: branch.name)),
    )


def _parting(bridge: str, ways: list[_Way]) -> Branch:
    """Return the branch for the last bridge that leads to all GPUs and adapters in `ways`. Each has the bridges between
    `bridge` and itself."""
    while all(way for way, _leaf in ways) and len({way[0] for way, _leaf in ways}) == 1:
        bridge, ways = ways[0][0][0], [(way[1:], leaf) for way, leaf in ways]
    return _branch(Level.BRIDGE, bridge, ways)


def _card(leaf: _Leaf) -> tuple[int, int, int] | None:
    address = _located(leaf).pci
    return None if address is None else (address.domain, address.bus, address.device)
