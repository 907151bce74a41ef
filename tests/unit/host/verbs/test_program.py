"""The program, alone: the distribution's Python has none of our packages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nri_rdma.host.verbs import program

OURS = {"nri_rdma", "nri_rdma.host", "nri_rdma.model", "nri_rdma.model.gid", "nri_rdma.decide", "nri_rdma.decide.gids"}


def test_it_imports_the_standard_library_and_little_of_ours() -> None:
    code = f"import runpy, sys; sys.argv[1:] = ['check']; runpy.run_path({program.__file__!r}, None, '__main__')"
    shown = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {code}"
    command = [sys.executable, "-I", "-S", "-c", shown]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    imported = {name for name in done.stderr.splitlines()[-1].split() if name.startswith("nri_rdma")}
    assert {it for it in imported if not it.startswith("nri_rdma.host.verbs")} == OURS
    assert done.returncode == 0


@pytest.mark.parametrize(("python", "verb"), [("3.9", ["capacity", "rxe0"]), ("3.10", ["check"]), ("3.13", ["check"])])
def test_a_distributions_older_python_runs_it(python: str, verb: list[str]) -> None:
    found = shutil.which(f"python{python}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {python} here")
    command = [found, "-I", str(Path(program.__file__)), *verb]
    done = subprocess.run(command, input='{"device": "rxe0"}\n', capture_output=True, text=True, check=False)
    assert "problem" in json.loads(done.stdout), done.stderr


def test_another_nri_rdma_of_that_python_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "nri_rdma").mkdir()
    (tmp_path / "nri_rdma/__init__.py").write_text("raise SystemExit(7)\n")
    code = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "
    code += f"runpy.run_path({program.__file__!r}, None, '__main__')"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize("verb", ["check", "serve", "call"])
def test_each_line_is_answered_by_a_line(verb: str) -> None:
    task = {"device": "rxe0", "devices": [], "bind": "192.0.2.1", "host": "127.0.0.1", "tcp_port": 1}
    line = json.dumps({**task, "wait_s": 0.1, "pair_s": 1, "seconds": 1})
    command = [sys.executable, "-I", "-S", str(Path(program.__file__)), verb]
    done = subprocess.run(command, input=f"{line}\n{line}\n", capture_output=True, text=True, check=True)
    one, two = map(json.loads, done.stdout.splitlines())
    assert one == two
    assert "problem" in one or "error" in one
