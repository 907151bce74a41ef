"""The cheapest assignment, found in another way than the product's: any one first, then one improving exchange after
the other.

Exact by Klein's theorem: an assignment is cheapest when no cycle of exchanges makes it cheaper. Slow on purpose, so
that it stays short enough to be believed; who checks placement imports this and nothing of nri_rdma.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Costs = Sequence[Sequence[int | None]]
"""What each column costs each row; None: never."""


def cheapest(costs: Costs) -> list[int] | None:
    """A column for each row, none twice, of the least sum; None when there is no way to give each row one."""
    columns = _any_way(costs)
    if columns is None:
        return None
    while cycle := _improving_cycle(costs, columns):
        _exchange(costs, columns, cycle)
    return columns


def most_pairs(allowed: Sequence[Sequence[bool]]) -> int:
    """How many rows can have an allowed column of their own at once."""
    owner: dict[int, int] = {}
    return sum(_find(allowed, row, owner, set()) for row in range(len(allowed)))


def _any_way(costs: Costs) -> list[int] | None:
    """Augmenting paths (Kuhn), the cheapest columns first."""
    allowed = [[cost is not None for cost in line] for line in costs]
    owner: dict[int, int] = {}
    if not all(_find(allowed, row, owner, set()) for row in range(len(costs))):
        return None
    columns = [0] * len(costs)
    for column, row in owner.items():
        columns[row] = column
    return columns


def _find(allowed: Sequence[Sequence[bool]], row: int, owner: dict[int, int], seen: set[int]) -> bool:
    for column, may in enumerate(allowed[row]):
        if may and column not in seen:
            seen.add(column)
            if column not in owner or _find(allowed, owner[column], owner, seen):
                owner[column] = row
                return True
    return False


def _improving_cycle(costs: Costs, columns: list[int]) -> list[int]:
    """Rows each of which takes the next one's column (Bellman, Ford); the row after the last one is "nobody", whose
    columns are the unused ones. Empty when nothing improves."""
    nobody = len(costs)
    edges = list(_edges(costs, columns, nobody))
    far, before = [0] * (nobody + 1), [-1] * (nobody + 1)
    for _ in range(nobody + 1):
        changed = -1
        for one, other, gain in edges:
            if far[one] + gain < far[other]:
                far[other], before[other], changed = far[one] + gain, one, other
        if changed < 0:
            return []
    for _ in range(nobody + 1):  # from anywhere on the walk back into its cycle
        changed = before[changed]
    cycle = [changed]
    while before[cycle[-1]] != changed:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def _edges(costs: Costs, columns: list[int], nobody: int) -> list[tuple[int, int, int]]:
    edges = [(nobody, row, 0) for row in range(nobody)]
    unused = sorted(set(range(len(costs[0]) if costs else 0)) - set(columns))
    for row, line in enumerate(costs):
        now = line[columns[row]] or 0
        for other in range(nobody):
            cost = line[columns[other]]
            if other != row and cost is not None:
                edges.append((row, other, cost - now))
        spare = [cost for column in unused if (cost := line[column]) is not None]
        if spare:
            edges.append((row, nobody, min(spare) - now))
    return edges


def _exchange(costs: Costs, columns: list[int], cycle: list[int]) -> None:
    nobody, had = len(costs), list(columns)
    for row, other in pairwise([*cycle, cycle[0]]):
        if row != nobody:
            columns[row] = had[other] if other != nobody else _cheapest_unused(costs[row], had)


def _cheapest_unused(line: Sequence[int | None], used: Sequence[int]) -> int:
    return min((cost, column) for column, cost in enumerate(line) if cost is not None and column not in used)[1]
