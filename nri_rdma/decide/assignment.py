"""The cheapest way to assign a column to each row of a cost matrix.

The Hungarian method with potentials (Kuhn, Munkres; as successive shortest paths): exact, deterministic, O(rows² x
columns) steps. A row whose best column is still free takes one step. It is therefore faster if the rows that do not
compete for columns come first, and if rows with equal costs follow each other and are the same list object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import sub

_FREE = -1


def cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return the column of each row such that the sum of the costs is least. Each column is assigned at most once,
    except the last one, which any number of rows may get. Equal arguments always give equal results."""
    if not costs:
        return []
    width = len(costs[0])
    of_row, of_column = [0] * len(costs), [0] * width  # potentials
    owner = [_FREE] * width  # the row that has each column; the last column stays free: any number of rows may get it
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
    """Assign a column to `row`; other rows may have to exchange their columns. Return the next row without a column.

    `owner` has the row of each column; `of_row` and `of_column` are the potentials of the Hungarian method. All three
    are changed. Following rows that are one list object with `row` are served in one search, until a row takes a column
    from another row.
    """
    line, last = costs[row], len(of_column) - 1
    came_from: dict[int, int] = {}
    done: list[tuple[int, int]] = []  # columns in the tree of paths, with their distance when they were added
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
    """Yield the columns with their distance from `row`, nearest first. `owner` has the row of each column, and the
    caller may set it between two columns. If the yielded column has an owner, the search goes on through the columns
    that its owner could take instead.

    `of_row` and `of_column` are the potentials of the Hungarian method. `came_from` is filled: for a column that is
    reached through another column, it has that other column.
    """
    line = costs[row]
    nearest = list(map(sub, line, of_column))
    left = list(range(len(of_column)))
    while True:
        column = min(left, key=nearest.__getitem__)
        reached = nearest[column]
        yield column, reached
        if owner[column] == _FREE:  # only the last column can be free here: any number of rows may get it
            continue
        left.remove(column)
        held = costs[owner[column]]
        offset = reached - of_row[owner[column]]
        for other in left if held is not line else ():  # an equal row cannot shorten any path
            through = held[other] - of_column[other] + offset
            if through < nearest[other]:
                nearest[other], came_from[other] = through, column


def _pass_on(column: int, came_from: Mapping[int, int], owner: list[int], row: int) -> None:
    """Move the owners along a path of columns that ends at `column`, and give the first column of the path to `row`.
    Each row on the path gives up its column and takes the next one. `came_from` has the column before each column of
    the path."""
    while column in came_from:
        before = came_from[column]
        owner[column] = owner[before] if column != len(owner) - 1 else _FREE
        column = before
    owner[column] = row
