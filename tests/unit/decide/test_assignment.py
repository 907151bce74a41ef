"""The assignment is the cheapest of all ways: compared with trying every one of them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.assignment import cheapest


def _all_ways(rows: int, width: int) -> list[tuple[int, ...]]:
    """Each column once, but the last one as often as it is wanted."""
    return [
        way
        for way in itertools.product(range(width), repeat=rows)
        if all(way.count(column) <= 1 for column in range(width - 1))
    ]


def _cost(costs: list[list[int]], way: list[int] | tuple[int, ...]) -> int:
    return sum(costs[row][column] for row, column in enumerate(way))


def _rows(width: int) -> st.SearchStrategy[list[list[int]]]:
    """Rows of which some are one list, one after the other."""
    runs = st.tuples(st.lists(st.integers(0, 20), min_size=width, max_size=width), st.integers(1, 4))
    return st.lists(runs, min_size=1, max_size=4).map(
        lambda found: [row for row, often in found for _ in range(often)][:5]
    )


_TABLES = st.integers(1, 5).flatmap(_rows)


@given(_TABLES)
def test_no_other_way_is_cheaper(costs: list[list[int]]) -> None:
    way = cheapest(costs)
    allowed = _all_ways(len(costs), len(costs[0]))
    assert tuple(way) in allowed
    assert _cost(costs, way) == min(_cost(costs, other) for other in allowed)
    assert cheapest(costs) == way


def test_a_row_gives_its_best_column_up_for_one_that_has_no_other() -> None:
    assert cheapest([[0, 1, 9], [0, 8, 9]]) == [1, 0]


def test_rows_for_which_there_is_no_column_share_the_last_one() -> None:
    assert cheapest([[1, 5], [1, 5], [1, 5]]).count(1) == 2


def test_rows_that_are_one_list_are_dealt_out_too() -> None:
    same = [3, 1, 2, 9]
    assert sorted(cheapest([same, same, same])) == [0, 1, 2]


def test_nothing_is_dealt_to_nobody() -> None:
    assert cheapest([]) == []
