"""`make mutants`: which mistakes are planted, where, and that the tests' verdict is their own."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.mutants import chosen, reach
from tests.mutants.__main__ import Mutant, order_of
from tests.mutants.mutations import mutations

SOURCE = '''\
LIMIT = True


class Pool:
    def take(self, asked, free=True):
        """Return it."""
        if asked > len(free) and not self.closed:
            self.note(f"{asked > 1} of ä")
            log.debug("no")
            return False
        return [it for it in free if it] if asked else (
            None
        )

    def wait(self, by):
        while True:
            if time.monotonic() >= by:
                return dict(zip(self.names, self.devices, strict=True))
'''
PLANTED = [
    (7, "always", "asked > len(free) and not self.closed", "True"),
    (7, "never", "asked > len(free) and not self.closed", "False"),
    (7, "and for or", "asked > len(free) and not self.closed", "(asked > len(free) or not self.closed)"),
    (7, "comparison turned", "asked > len(free)", "(asked <= len(free))"),
    (7, "border moved", "asked > len(free)", "(asked >= len(free))"),
    (7, "not left out", "not self.closed", "(self.closed)"),
    (8, "call left out", 'self.note(f"{asked > 1} of ä")', "pass"),
    (10, "true for false", "False", "(True)"),
    (11, "always", "[it for it in free if it] if asked else ( None )", "([it for it in free if it])"),
    (11, "never", "[it for it in free if it] if asked else ( None )", "(None)"),
    (11, "condition left out", "[it for it in free if it]", "([it for it in free])"),
    (16, "true for false", "True", "(False)"),
    (17, "always", "time.monotonic() >= by", "True"),
    (17, "never", "time.monotonic() >= by", "False"),
    (17, "comparison turned", "time.monotonic() >= by", "(time.monotonic() < by)"),
]


def test_these_mistakes_and_no_others_can_be_planted() -> None:
    """Not: constants of a module, default values, the insides of f-strings, what is logged for developers, and what
    changes nothing."""
    assert [(it.place[0], it.kind, it.before, it.after) for it in mutations(SOURCE)] == PLANTED


def test_a_mistake_changes_its_place_only() -> None:
    for mutation in mutations(SOURCE):
        planted = mutation.planted(SOURCE)
        ast.parse(planted)
        first, column, last, end = mutation.place
        lines, changed = SOURCE.encode().splitlines(), planted.encode().splitlines()
        assert changed[: first - 1] == lines[: first - 1]
        assert changed[first - 1].startswith(lines[first - 1][:column] + mutation.after.encode())
        assert changed[first - 1].endswith(lines[last - 1][end:])
        assert changed[first:] == lines[last:]


def test_the_lines_of_a_mistake_are_those_of_its_statement() -> None:
    statements = {
        7: range(7, 8),
        8: range(8, 9),
        10: range(10, 11),
        11: range(11, 14),
        16: range(16, 17),
        17: range(17, 18),
    }
    for mutation in mutations(SOURCE):
        lines = range(mutation.first_line, mutation.last_line + 1)
        assert lines == statements[mutation.place[0]], mutation


def test_chosen_tests_run_in_their_order_and_failures_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): assert False\ndef test_c(): pass\n")
    listed = tmp_path / "chosen"
    listed.write_text("test_it.py::test_c\ntest_it.py::test_b")
    shown = run(tmp_path, {chosen.FILE: str(listed)}, "-v")
    order = [line.split()[0] for line in shown.splitlines() if line.startswith("test_it.py::")]
    assert order == ["test_it.py::test_c", "test_it.py::test_b"]
    assert Path(str(listed) + chosen.FAILED).read_text() == "test_it.py::test_b\n"


def test_a_thread_that_never_ends_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import threading\n\n\ndef test_a():\n    threading.Thread(target=threading.Event().wait).start()\n"
    )
    listed = tmp_path / "chosen"
    listed.write_text("test_it.py::test_a")
    assert "1 passed" in run(tmp_path, {chosen.FILE: str(listed)})


def test_a_fixture_that_does_not_end_after_a_failure_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import threading\nimport pytest\nfrom tests.mutants import chosen\n\nchosen.AFTER_FAILURE_S = 0.2\n\n\n"
        "@pytest.fixture\ndef stuck():\n    yield\n    threading.Event().wait()\n\n\n"
        "def test_a(stuck):\n    assert False\n"
    )
    listed = tmp_path / "chosen"
    listed.write_text("test_it.py::test_a")
    run(tmp_path, {chosen.FILE: str(listed)}, "-x")
    assert Path(str(listed) + chosen.FAILED).read_text() == "test_it.py::test_a\n"


def test_a_mistake_is_tried_by_the_tests_of_its_module_first_and_by_those_that_run_its_line() -> None:
    """What is kept (`functools.cache`) or made at an import runs in one test, or in none, though many need it."""
    planted = replace(next(mutations(SOURCE)), first_line=7, last_line=7)
    own = "tests/unit/engine/test_pool.py"
    reached = {
        "nri_rdma/engine/pool.py": {2: [f"{own}::test_a"], 7: ["tests/unit/x/test_y.py::test_b"]},
        "nri_rdma/engine/other.py": {7: [f"{own}::test_c", "tests/unit/engine/test_other.py::test_d"]},
    }
    order = order_of(Mutant("nri_rdma/engine/pool.py", planted), reached)
    assert order == [f"{own}::test_a", "tests/unit/x/test_y.py::test_b"]


def test_every_line_has_the_tests_that_run_it(tmp_path: Path) -> None:
    """Also in a thread that a test starts."""
    (tmp_path / "nri_rdma").mkdir()
    (tmp_path / "nri_rdma/__init__.py").write_text(
        "def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef none():\n    return 0\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import threading\nimport nri_rdma\n\n\ndef test_one():\n    nri_rdma.one()\n\n\n"
        "def test_both():\n    nri_rdma.one()\n    thread = threading.Thread(target=nri_rdma.two)\n"
        "    thread.start()\n    thread.join()\n"
    )
    data = tmp_path / "reach"
    run(tmp_path, {reach.FILE: str(data)})
    lines = reach.read(data, tmp_path)["nri_rdma/__init__.py"]
    assert sorted(lines[2]) == ["test_it.py::test_both", "test_it.py::test_one"]
    assert lines[6] == ["test_it.py::test_both"]
    assert not lines.get(10)


def test_lines_are_found_in_a_checkout_that_is_reached_by_a_link(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    (there / "nri_rdma").mkdir(parents=True)
    link.symlink_to(there)
    (there / "nri_rdma/__init__.py").write_text("def one():\n    return 1\n")
    (there / "test_it.py").write_text("import nri_rdma\n\n\ndef test_one():\n    nri_rdma.one()\n")
    data = tmp_path / "reach"
    run(link, {reach.FILE: str(data)})
    assert reach.read(data, link)["nri_rdma/__init__.py"][2] == ["test_it.py::test_one"]


def run(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    """Output of pytest in a folder of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", "-c", "/dev/null"]
    command += ["-p", reach.__name__, "-p", chosen.__name__, *arguments, "test_it.py"]
    project = Path(__file__).resolve().parents[2]
    path = {"PYTHONPATH": f".:{project}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=folder, env={**path, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout
