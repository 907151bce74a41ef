"""The cheapest way to give each row a column.

The Hungarian method with potentials (Kuhn, Munkres; in the form of successive shortest paths): exact, deterministic,
O(rows² x columns) steps. A row whose best column is still free takes one step, so it is quicker when rows that do not
compete come first, and when rows that cost the same are one list, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import sub

_FREE = -1


def cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return the column of each row, so that the sum of the costs is least: each column is given once, except the last,
    which any number of rows may get. Of several cheapest solutions it is always the same one."""
    if not costs:
        return []
    width = len(costs[0])
    of_row, of_column = [0] * len(costs), [0] * width  # potentials
    owner = [_FREE] * width  # the row that has each column; the last one stays free: there is always more of it
    row = 0
    while row < len(costs):
        row = _augment(costs, of_row, of_column, owner, row)
    columns = [width - 1] * len(costs)
    for column, row in enumerate(owner):
        if row != _FREE:
            columns[row] = column
    return columns


def _augment(
    costs: Sequence[Sequence[int]], of_row: list[int], of_column: list[int], owner: list[int], row: int
) -> int:
    """Find a column for a row, by the shortest path over columns that other rows give up. Return the next row without
    one.

    Rows after it that are the same list take the next columns of the same search, as long as nobody gives up a column
    for them: until then all paths are as they were.
    """
    line, last = costs[row], len(of_column) - 1
    came_from: dict[int, int] = {}
    done: list[tuple[int, int]] = []  # columns of the paths' tree, with their distance when they joined
    for column, reached in _by_distance(costs, of_row, of_column, owner, row, came_from):
        if owner[column] == _FREE:
            of_row[row] = reached
            if column in came_from:
                break
            if column != last:
                owner[column] = row
            row += 1
            if row == len(costs) or costs[row] is not line:
                break
        if column != last:
            done.append((column, reached))
    for tree, at in done:
        of_column[tree] -= reached - at
        of_row[owner[tree]] += reached - at
    if column in came_from:
        _pass_on(column, came_from, owner, row)
        return row + 1
    return row


def _by_distance(
    costs: Sequence[Sequence[int]],
    of_row: Sequence[int],
    of_column: Sequence[int],
    owner: Sequence[int],
    row: int,
    came_from: dict[int, int],
) -> Iterator[tuple[int, int]]:
    """Yield the columns with their distance from a row, the nearest first, and go on over those that have an owner by
    then. `came_from` gets the column before each that is nearer over another one."""
    line = costs[row]
    nearest = list(map(sub, line, of_column))
    left = list(range(len(of_column)))
    while True:
        column = min(left, key=nearest.__getitem__)
        reached = nearest[column]
        yield column, reached
        if owner[column] == _FREE:  # the last one: there is always more of it
            continue
        left.remove(column)
        held = costs[owner[column]]
        offset = reached - of_row[owner[column]]
        for other in left if held is not line else ():  # the same line: no way over it is shorter
            through = held[other] - of_column[other] + offset
            if through < nearest[other]:
                nearest[other], came_from[other] = through, column


def _pass_on(column: int, came_from: Mapping[int, int], owner: list[int], row: int) -> None:
    """Give each column of a path to the row whose column comes before it, and the first one to `row`."""
    while column in came_from:
        before = came_from[column]
        owner[column] = owner[before] if column != len(owner) - 1 else _FREE
        column = before
    owner[column] = row
