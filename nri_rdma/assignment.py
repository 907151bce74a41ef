"""The cheapest way to give each row a column of its own.

The Hungarian method with potentials (Kuhn, Munkres; in the form of successive shortest paths): exact, deterministic,
O(rows² x columns) steps.
"""

from __future__ import annotations

from collections.abc import Sequence


def cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """The column of each row, none twice, so that the costs add up to the least. There are at least as many columns as
    rows; of several cheapest ways it is always the same one."""
    if not costs:
        return []
    width = len(costs[0])
    of_row, of_column = [0] * (len(costs) + 1), [0] * (width + 1)  # potentials
    owner = [-1] * width + [-1]  # the row that has each column; the last one is where a new row begins
    for row in range(len(costs)):
        owner[width] = row
        _augment(costs, of_row, of_column, owner)
    columns = [0] * len(costs)
    for column in range(width):
        if owner[column] >= 0:
            columns[owner[column]] = column
    return columns


def _augment(costs: Sequence[Sequence[int]], of_row: list[int], of_column: list[int], owner: list[int]) -> None:
    """Find the row at the end of `owner` a column, by the shortest path over columns that others give up."""
    width = len(owner) - 1
    left = list(range(width))
    nearest: list[int] = []
    came_from = [width] * width
    done: list[tuple[int, int]] = []  # columns of the path's tree, with their distance when they joined
    column, reached = width, 0
    while owner[column] >= 0:
        row = owner[column]
        offset = reached - of_row[row]
        line = costs[row]
        if not nearest:
            nearest = [line[other] - of_column[other] + offset for other in range(width)]
        else:
            for other in left:
                through = line[other] - of_column[other] + offset
                if through < nearest[other]:
                    nearest[other], came_from[other] = through, column
        column = min(left, key=nearest.__getitem__)
        reached = nearest[column]
        left.remove(column)
        done.append((column, reached))
    of_row[owner[width]] += reached
    for tree, at in done[:-1]:
        of_column[tree] -= reached - at
        of_row[owner[tree]] += reached - at
    while column != width:
        before = came_from[column]
        owner[column] = owner[before]
        column = before
