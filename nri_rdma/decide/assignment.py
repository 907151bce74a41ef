"""The cheapest way to give each row a column.

The Hungarian method with potentials (Kuhn, Munkres; in the form of successive shortest paths): exact, deterministic,
O(rows² x columns) steps. A row whose best column is still free takes one step, so it is quicker when rows that do not
compete come first, and when rows that cost the same are one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub

_FREE = -1


def cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return the column of each row, so that the sum of the costs is least: each column is given once, except the last,
    which any number of rows may get. Of several cheapest solutions it is always the same one."""
    if not costs:
        return []
    width = len(costs[0])
    of_row, of_column = [0] * len(costs), [0] * width  # potentials
    owner = [_FREE] * (width + 1)  # the row that has each column; the last one is where a new row begins
    for row in range(len(costs)):
        owner[width] = row
        _augment(costs, of_row, of_column, owner)
        owner[width - 1] = _FREE  # there is always more of it
    columns = [width - 1] * len(costs)
    for column in range(width - 1):
        if owner[column] != _FREE:
            columns[owner[column]] = column
    return columns


def _augment(costs: Sequence[Sequence[int]], of_row: list[int], of_column: list[int], owner: list[int]) -> None:
    """Find a column for the row at the end of `owner`, by the shortest path over columns that other rows give up."""
    width = len(of_column)
    new = owner[width]
    nearest = list(map(sub, costs[new], of_column))
    reached = min(nearest)
    column = nearest.index(reached)
    left = list(range(width))
    came_from = [width] * width
    done: list[tuple[int, int]] = []  # columns of the path's tree, with their distance when they joined
    while owner[column] != _FREE:
        left.remove(column)
        done.append((column, reached))
        row = owner[column]
        line, offset = costs[row], reached - of_row[row]
        for other in left if line is not costs[new] else ():  # the same line: no way over it is shorter
            through = line[other] - of_column[other] + offset
            if through < nearest[other]:
                nearest[other], came_from[other] = through, column
        column = min(left, key=nearest.__getitem__)
        reached = nearest[column]
    of_row[new] = reached
    for tree, at in done:
        of_column[tree] -= reached - at
        of_row[owner[tree]] += reached - at
    while column != width:
        before = came_from[column]
        owner[column] = owner[before]
        column = before
