"""`make test-one` and `make test-changed` choose the tests that were meant, and say so when there are none."""

import subprocess
from pathlib import Path

import pytest

from tests import one


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("tests/unit/tasks", ["tests/unit/tasks"]),
        ("nri_rdma/tasks", ["tests/unit/tasks"]),
        ("nri_rdma", ["tests/unit"]),
        ("hooks", ["tests/unit/hooks"]),
        ("deploy/image", ["tests/unit/deploy/image"]),
        ("tests/unit/tasks/test_burst.py", ["tests/unit/tasks/test_burst.py"]),
        ("test_burst", ["tests/unit/tasks/test_burst.py"]),
        ("test_burst.py::test_a", ["tests/unit/tasks/test_burst.py::test_a"]),
        ("tests/runtime/test_claims.py", ["tests/runtime/test_claims.py"]),
        ("test_limits", ["tests/unit/host/test_limits.py"]),  # the virtual machine has one, too
        ("A_bomb", ["tests/unit/cdi/test_document.py", "tests/unit/text/test_yaml.py", "-k", "A_bomb"]),
        (
            "nri_rdma/decide/placement.py",
            ["tests/unit/decide/test_placement.py", "tests/unit/decide/test_placement_exact.py"],
        ),
        ("no_such_test", []),
        ("test_no_such.py", []),
        ("docs", []),
        ("", []),
    ],
)
def test_a_wish_stands_for_these_tests(wanted: str, chosen: list[str]) -> None:
    assert one.chosen_for(wanted) == chosen


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("nri_rdma/doors/nri/runtime_link.py", "tests/unit/doors/nri/test_cases.py"),  # it has no mirror
        ("tests/unit/rigs/policies.py", "tests/unit/decide/test_policy.py"),
        ("tests/unit/golden/refusals.txt", "tests/unit/decide/test_refusal_texts.py"),
        ("hooks/nri_rdma_oci_hook.py", "tests/unit/hooks/test_oci_hook.py"),  # only its folder has the name
        ("tests/unit/attach/conftest.py", "tests/unit/attach/test_undo.py"),
    ],
)
def test_a_file_that_no_test_is_named_after_stands_for_the_tests_around_it(file: str, test: str) -> None:
    assert test in one.chosen_for(file)


def test_what_no_test_is_called_is_answered_with_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert one.main(["test_burts.py"]) != 0
    told = capsys.readouterr().err
    assert told.startswith(
        "test-one: no test is called test_burts.py. There is test_burst.py. Next: write one of these\n"
    )


def test_a_change_is_what_differs_from_where_the_branch_began(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text("new\n")

    git("init", "-b", "main")
    (tmp_path / ".gitignore").write_text("ignored\n")
    for name in ("same", "edited", "removed", "committed", "of_main"):
        (tmp_path / name).touch()
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "branch")
    write("committed")
    git("commit", "-am", "second")
    git("checkout", "main")
    write("of_main")
    git("commit", "-am", "third")
    git("checkout", "branch")
    write("edited", "untracked", "ignored")
    (tmp_path / "removed").unlink()
    assert one.changed_files(folder=tmp_path) == ["committed", "edited", "untracked"]
    with pytest.raises(ValueError, match=r"git knows no master\. Next: "):
        one.changed_files("master", tmp_path)
    git("checkout", "--orphan", "other")
    git("commit", "-m", "fourth")
    with pytest.raises(ValueError, match="no merge base found"):
        one.changed_files(folder=tmp_path)


def test_a_change_is_told_what_is_chosen_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["nri_rdma/tasks/burst.py", "tests/lab/guest/test_limits.py", "tests/unit/tasks/test_waiting.py"]
    assert one.chosen_for_change(files) == [
        "tests/unit/tasks/test_waiting.py",
        "tests/unit/tasks/test_burst.py",
        "tests/house",
    ]
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "tests that differ: tests/unit/tasks/test_waiting.py",
        "nri_rdma/tasks/burst.py: tests/unit/tasks/test_burst.py",
        "left out: tests/lab/guest/test_limits.py: make test-one T=tests/lab/guest/test_limits.py",
        "tests/house: has something to say about every change",
    ]
    assert one.chosen_for_change([]) == []
