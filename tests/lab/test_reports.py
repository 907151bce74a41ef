"""What all machines of a run say together."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.lab import reports
from tests.lab.reports import Case

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="0" skipped="0" tests="2" time="3.5">
<testcase classname="tests.lab.guest.test_cells" name="test_a[x]" time="1.5">
<properties><property name="outcome" value="row"/></properties></testcase>
<testcase classname="tests.lab.guest.test_cells" name="test_b" time="2.0"/></testsuite></testsuites>
"""


def report(results: Path, part: str) -> None:
    (results / part).mkdir(parents=True)
    (results / part / "junit.xml").write_text(REPORT)


@pytest.mark.parametrize(
    ("summaries", "one"),
    [
        (["9 passed in 44.84s"], "9 passed in 44.84s"),
        (
            ["41 passed, 9 deselected in 400.10s (0:06:40)", "39 passed, 6 deselected in 240.05s (0:04:00)"],
            "80 passed, 15 deselected in 640.15s, in 2 shares",
        ),
        (
            ["41 passed, 1 warning in 2.00s", "1 failed, 38 passed, 2 warnings, 1 error in 1.00s"],
            "1 failed, 1 errors, 79 passed, 3 warnings in 3.00s, in 2 shares",
        ),
        (["no tests ran in 0.01s", "3 passed in 1.00s"], "3 passed in 1.01s, in 2 shares"),
    ],
)
def test_the_summaries_of_shares_are_one(summaries: list[str], one: str) -> None:
    assert reports.joined(summaries) == one


def test_a_test_is_known_by_its_machine_whatever_share_ran_it(tmp_path: Path) -> None:
    report(tmp_path, "small-2")
    cases = reports.read_cases(tmp_path)
    assert {case.machine for case in cases} == {"small"}
    assert cases == (
        Case(part="small-2", file="test_cells.py", name="test_a[x]", seconds=1.5, rows=("row",)),
        Case(part="small-2", file="test_cells.py", name="test_b", seconds=2.0, rows=()),
    )


def test_what_failed_is_told_in_a_line_with_its_place_and_its_reason(tmp_path: Path) -> None:
    (tmp_path / "small-1").mkdir()
    (tmp_path / "small-1" / "junit.xml").write_text(
        '<testsuites><testsuite name="pytest"><testcase classname="tests.lab.guest.test_cells" name="test_a">'
        '<failure message="AssertionError: two&#10;lines">long</failure></testcase>'
        '<testcase classname="tests.lab.guest.test_cells" name="test_b"><error>raised where</error></testcase>'
        '<testcase classname="tests.lab.guest.test_cells" name="test_c"><error message="' + "x" * 400 + '"/></testcase>'
        '<testcase classname="tests.lab.guest.test_cells" name="test_d"/></testsuite></testsuites>'
    )
    assert list(reports.failures(reports.read_cases(tmp_path))) == [
        "small-1: test_cells.py::test_a: AssertionError: two lines",
        "small-1: test_cells.py::test_b: raised where",
        f"small-1: test_cells.py::test_c: {'x' * 297}...",
    ]


def test_what_failed_in_a_machine_that_was_ended_is_told_out_of_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "small-1").mkdir()
    (tmp_path / "small-1" / "pytest.log").write_bytes(
        b"test_a FAILED\nlab: failed: test_a (call): Timeout\n\xff\nlab: failed: test_b (setup): "
        + b"y" * 400
        + b"\ntest_c"
    )
    told = list(reports.failures_so_far("small-1", tmp_path))
    assert told[0] == "small-1: test_a (call): Timeout"
    assert told[1].startswith("small-1: test_b (setup): yyy")
    assert told[1].endswith("...")
    assert list(reports.failures_so_far("never-began", tmp_path)) == []


def test_the_report_of_all_has_a_suite_for_each_part_and_all_their_tests(tmp_path: Path) -> None:
    for part in ("small-1", "small-2"):
        report(tmp_path, part)
    suites = list(ET.parse(reports.join_reports(["small-1", "small-2", "died"], tmp_path)).iter("testsuite"))
    assert [suite.get("name") for suite in suites] == ["small-1", "small-2"]
    assert sum(len(list(suite.iter("testcase"))) for suite in suites) == 4


def test_a_test_that_two_shares_of_a_machine_ran_is_told(tmp_path: Path) -> None:
    for part in ("small-1", "small-2", "eight"):
        report(tmp_path, part)
    assert list(reports.complaints(reports.read_cases(tmp_path), ["row"])) == [
        "test_cells.py::test_a[x] ran in small-1 and small-2",
        "test_cells.py::test_b ran in small-1 and small-2",
    ]


def test_a_test_that_failed_and_whose_end_failed_too_is_in_a_report_twice_and_no_complaint(tmp_path: Path) -> None:
    report(tmp_path, "small")
    cases = reports.read_cases(tmp_path)
    assert list(reports.complaints([*cases, *cases], ["row"])) == []


def test_a_row_of_outcomes_that_no_test_of_any_machine_met_is_told(tmp_path: Path) -> None:
    report(tmp_path, "small-1")
    cases = reports.read_cases(tmp_path)
    assert list(reports.complaints(cases, ["row", "lost"])) == ["no test met the row 'lost' of outcomes.toml"]


def test_what_a_machine_and_its_shares_said_before_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    for part in ("small", "small-1", "small-2", "eight"):
        report(tmp_path, part)
    reports.join_reports(["small", "eight"], tmp_path)
    reports.remove_results({"small"}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["eight"]
