"""Tables on terminals of any width."""

import pytest

from nri_rdma.commands.common.screen import TextTable, age, layout, printable

LONG = "the quick brown fox jumps over the lazy dog and then over another one"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    table = TextTable(headings=("A", "LONGER", "LAST"), rows=(("xx", "y", "z"), ("x", "yy", "zz")))
    assert [line.rstrip() for line in layout(table, 80)] == ["A   LONGER  LAST", "xx  y       z", "x   yy      zz"]


def test_the_last_column_wraps_below_itself() -> None:
    table = TextTable(headings=("A", "LAST"), rows=(("x", LONG), ("y", "short")))
    assert layout(table, 40) == (
        "A  LAST",
        "x  the quick brown fox jumps over the   ",
        "   lazy dog and then over another one   ",
        f"y  {'short':<37}",
    )


def test_a_last_column_without_room_goes_below_its_row_and_others_stay() -> None:
    table = TextTable(headings=("A" * 30, "LAST"), rows=(("x", LONG), ("y", "no")))
    lines = [line.rstrip() for line in layout(table, 50)]
    assert lines[1] == "x"
    assert lines[2].startswith("    the quick")
    assert lines[-1] == f"{'y':<27}no"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_is_never_wider_than_the_terminal(width: int) -> None:
    rows = tuple((LONG, "a" * length, LONG) for length in (1, 20, 200))
    table = TextTable(headings=("ONE", "TWO", "THREE"), rows=rows[:2])
    assert max(len(line.rstrip()) for line in layout(table, width)) <= width


def test_a_cell_of_two_lines_is_as_wide_as_the_longer_one() -> None:
    table = TextTable(headings=("POD", "LAST"), rows=(("default/one\ncontainer main", "x"),))
    assert [line.rstrip() for line in layout(table, 80)] == [
        "POD             LAST",
        "default/one     x",
        "container main",
    ]


def test_an_empty_table_has_its_headings_only() -> None:
    assert layout(TextTable(headings=("A", "B"), rows=()), 80) == ("A  B",)


@pytest.mark.parametrize("text", ["\x1b[31m", "\r", "\x07", "\u202e", "\x9b1m"])
def test_control_characters_are_shown_and_not_sent(text: str) -> None:
    assert printable(text).isprintable()


def test_a_newline_and_letters_of_the_world_stay() -> None:
    assert printable("Grüße\n網路") == "Grüße\n網路"


def test_ages_have_two_units() -> None:
    assert [age(it) for it in (5.4, 65, 3600 * 5 + 61, 86400 * 3 + 7200)] == [
        "5 s",
        "1 min 5 s",
        "5 h 1 min",
        "3 d 2 h",
    ]
