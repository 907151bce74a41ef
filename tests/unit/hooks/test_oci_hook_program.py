"""The program of the OCI hook runs the module beside it, and lets no container start where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.hooks.ended import Ended

SOURCE = Path(__file__).resolve().parents[3] / "hooks"
PROGRAM, MODULE = "nri-rdma-oci-hook", "nri_rdma_oci_hook.py"
TELLS = """
import os, sys
def main(arguments, program):
    umask = os.umask(0)
    print(arguments, program, oct(umask), sys.path[0])
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with both files of the hook, as they are installed."""
    made = tmp_path / "lib"
    made.mkdir()
    for name in (PROGRAM, MODULE):
        shutil.copy(SOURCE / name, made)
    return made


def start(folder: Path, *arguments: str, umask: str = "022") -> subprocess.CompletedProcess[str]:
    """Run the program as an OCI runtime does; its state makes no sense to it."""
    command = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", sys.executable, "-IS", str(folder / PROGRAM), *arguments]
    return subprocess.run(command, input="{", capture_output=True, text=True, check=False, timeout=30)


def works(folder: Path) -> bool:
    done = start(folder, "--help")
    return (done.returncode, done.stdout[:24], done.stderr) == (0, "usage: nri-rdma-oci-hook", "")


def compiled(folder: Path) -> list[Path]:
    return [*(folder / "__pycache__").glob("*")]


def test_the_module_gets_the_arguments_and_the_programs_path(folder: Path) -> None:
    (folder / MODULE).write_text(TELLS)
    for arguments in ([], ["attach", "--device", "mlx5_5"]):
        done = start(folder, *arguments)
        told = f"{arguments} {folder / PROGRAM} 0o22 "
        assert (done.returncode, done.stdout[: len(told)], done.stderr) == (7, told, "")


def test_it_is_compiled_once(folder: Path) -> None:
    assert works(folder)
    (file,) = compiled(folder)
    before = file.stat().st_mtime_ns, file.read_bytes()
    assert works(folder)
    assert [(it.stat().st_mtime_ns, it.read_bytes()) for it in compiled(folder)] == [before]


def test_another_module_in_its_place_is_what_runs(folder: Path) -> None:
    assert works(folder)
    (folder / MODULE).write_text(TELLS)
    assert start(folder).returncode == 7


def test_nothing_else_is_imported_from_its_folder(folder: Path) -> None:
    for name in ("os", "syslog", "_json", "json", "time", "_socket", "socket", "resource", "importlib", "encodings"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write({name!r})\n")
    assert start(folder, "attach", "--device", "mlx5_5").returncode == 1
    (folder / MODULE).write_text(TELLS)
    assert str(folder) not in start(folder).stdout.split()[-1]
    (folder / MODULE).unlink()
    assert start(folder, "attach").returncode == 1
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("umask", ["000", "002", "022"])
def test_only_its_owner_writes_compiled_code_and_the_umask_stays(folder: Path, umask: str) -> None:
    """Who can write there is root: an OCI runtime runs the hook."""
    (folder / MODULE).write_text(TELLS)
    told = start(folder, umask=umask).stdout
    assert told.split()[2] == oct(int(umask, 8)), "an OCI runtime that it becomes makes files, too"
    modes = {it.name.partition(".")[0]: it.stat().st_mode & 0o777 for it in (folder / "__pycache__", *compiled(folder))}
    assert modes == {"__pycache__": 0o755, MODULE.removesuffix(".py"): 0o644}


def test_where_compiled_code_cannot_be_written_it_works_without(folder: Path) -> None:
    (folder / "__pycache__").write_text("a file where the folder would be\n")
    assert works(folder)


@pytest.mark.parametrize("size", [0, 8, 16, 500, -1])
def test_compiled_code_that_was_cut_is_left_aside(folder: Path, size: int) -> None:
    """On a full disk Python 3.11 left such files, and failed to import the module from then on."""
    assert works(folder)
    (file,) = compiled(folder)
    file.write_bytes(file.read_bytes()[:size])
    assert works(folder)


# A module that cannot be used


def is_missing(module: Path) -> None:
    module.unlink()


def is_no_python(module: Path) -> None:
    module.write_text("def main(:\n")


def is_cut(module: Path) -> None:
    module.write_text(module.read_text()[:1000])


def is_empty(module: Path) -> None:
    module.write_text("")


def has_nothing_but_zeros(module: Path) -> None:
    module.write_bytes(bytes(module.stat().st_size))
    os.utime(module, (0, 0))  # in another second than the content before: Python compares that and the size


def fails(module: Path) -> None:
    module.write_text("raise ValueError('two\\nlines, \"quoted\"')\n")


Fault = Callable[[Path], None]
FAULTS: list[Fault] = [is_missing, is_no_python, is_cut, is_empty, has_nothing_but_zeros, fails]


@pytest.fixture(params=FAULTS, ids=lambda it: it.__name__)
def faulty(folder: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a hook that was used before, with a module that cannot be."""
    assert works(folder)
    fault: Fault = request.param
    fault(folder / MODULE)
    return folder


@pytest.mark.parametrize("verb", ["attach", "attach-prepared", "return", "prepare", ""])
def test_without_its_module_it_refuses_and_says_what_to_do(faulty: Path, verb: str) -> None:
    done = start(faulty, verb)
    assert done.stdout == "", "for podman an answer of `prepare` would be the container's configuration"
    ended = Ended(code=done.returncode, error=done.stderr)
    assert ended.refused_with == "OCI-STATE"
    assert [it for it in (MODULE, str(faulty / PROGRAM), "nri-rdma install podman") if it not in ended.error] == []


def test_docker_shows_that_and_the_oci_runtime_is_not_run(faulty: Path, tmp_path: Path) -> None:
    runtime, log = tmp_path / "runtime", tmp_path / "log.json"
    runtime.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    runtime.chmod(0o755)
    log.write_text('{"level":"warning","msg":"before"}\n')
    words = ("--root", "/r", "--log", str(log), "--log-format", "json", "create", "--bundle", str(tmp_path), "ab12")
    done = start(faulty, "create", "--", str(runtime), *words)
    assert (done.returncode, (tmp_path / "was-run").exists()) == (1, False)
    assert json.loads(log.read_text().splitlines()[-1]) == {"level": "error", "msg": done.stderr.rstrip("\n")}
    done = start(faulty, "create", "--", str(runtime), "create", "ab12")
    assert Ended(code=done.returncode, error=done.stderr).refused_with == "OCI-STATE", "without a log, too"


def test_a_module_that_is_put_there_again_is_used(faulty: Path) -> None:
    assert start(faulty, "attach").returncode == 1
    shutil.copy(SOURCE / MODULE, faulty)
    assert works(faulty)
