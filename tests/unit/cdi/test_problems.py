"""The problems of a CDI file: collected, placed and bounded."""

from __future__ import annotations

import pytest

from nri_rdma.cdi.problems import MAX_PROBLEMS, OF_SPECS, path_text, problems_of
from nri_rdma.cdi.reading import inspect, parse
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.refusals import Errors, refused

HEAD = "cdiVersion: 1.1.0\nkind: ve/cl\n"


def test_a_problem_carries_code_file_line_and_path() -> None:
    text = f"{HEAD}devices:\n- name: a\n  containerEdits:\n    deviceNodes:\n    - path: /a\n      permissions: rx\n"
    with pytest.raises(CdiError) as caught:
        parse(text.encode(), "/etc/cdi/a.yaml")
    error = caught.value
    assert (error.code, error.file, error.line) == (ErrorCode.CDI_VALUE, "/etc/cdi/a.yaml", 8)
    assert error.path == "devices[0].containerEdits.deviceNodes[0].permissions"
    assert error.where == f"/etc/cdi/a.yaml line 8 {error.path}"


def test_problems_beyond_a_hundred_are_counted() -> None:
    text = f"{HEAD}devices: [{{name: a, containerEdits: {{env: [{'B,' * 250}]}}}}]"
    problems = inspect(text.encode(), "FILE").problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].what == "there are 150 more problems"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("devices", 2, "containerEdits", "env", 0), "devices[2].containerEdits.env[0]"),
        (("annotations", "example.com/a"), "annotations['example.com/a']"),
        (("", "a"), "[''].a"),
        (("a" * 65,), f"['{'a' * 61}...']"),
    ],
)
def test_a_path_is_written_as_in_a_program(path: tuple[str | int, ...], text: str) -> None:
    assert path_text(path) == text


def test_problems_are_in_the_order_of_lines_and_those_of_one_line_as_they_were_met() -> None:
    errors = Errors()
    for line, what in [(3, "c"), (1, "a"), (3, "d"), (2, "b")]:
        errors.add(refused("", what, "mend it"), line)
    assert [problem.what for problem in problems_of(errors, "FILE", {})] == ["a", "b", "c", "d"]


def test_an_error_of_any_reader_becomes_a_problem_of_its_key_in_the_words_of_cdi() -> None:
    errors = Errors([refused(".devices[0]", "it is missing", "write it", "name")])
    (problem,) = problems_of(errors, "FILE", OF_SPECS)
    assert (problem.code, problem.path) == (ErrorCode.CDI_VALUE, "devices[0].name")
