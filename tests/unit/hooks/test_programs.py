"""The programs of both hooks run the module beside them, and let no container start where they cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.hooks.ended import Ended

SOURCE = Path(__file__).resolve().parents[3] / "hooks"
GUARD, OCI = "nri-rdma-hook", "nri-rdma-oci-hook"
PLAIN = json.dumps({"id": "x", "bundle": "/nowhere", "annotations": {}})
TELLS = """
import os, sys
def main(arguments, program):
    umask = os.umask(0)
    print(arguments, program, oct(umask), sys.path[0])
    return 7
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Both files of a hook, as they are installed."""

    program: Path

    @property
    def folder(self) -> Path:
        return self.program.parent

    @property
    def module(self) -> Path:
        return self.program.with_name(f"{self.program.name.replace('-', '_')}.py")

    @property
    def is_guard(self) -> bool:
        return self.program.name == GUARD

    @property
    def verbs(self) -> tuple[str, ...]:
        return ("verify", "spec") if self.is_guard else ("attach", "attach-prepared", "return", "prepare")

    @property
    def advice(self) -> str:
        return "copy both files" if self.is_guard else "nri-rdma install podman"

    def copy_module(self) -> None:
        shutil.copy(SOURCE / self.module.name, self.folder)

    def start(self, *arguments: str, umask: str = "022", given: str = "{") -> subprocess.CompletedProcess[str]:
        """Run the program as an OCI runtime does; its state makes no sense to it."""
        command = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", sys.executable, "-IS", str(self.program), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=30)

    def works(self) -> bool:
        done = self.start("--help")
        words = f"usage: {self.program.name} "
        return (done.returncode, done.stdout[: len(words)], done.stderr) == (0, words, "")

    def compiled(self) -> list[Path]:
        return [*(self.folder / "__pycache__").glob("*")]


def copied(name: str, tmp_path: Path) -> Hook:
    hook = Hook(program=tmp_path / "lib" / name)
    hook.folder.mkdir()
    shutil.copy(SOURCE / name, hook.folder)
    hook.copy_module()
    return hook


@pytest.fixture(params=[GUARD, OCI])
def hook(tmp_path: Path, request: pytest.FixtureRequest) -> Hook:
    """A hook of either kind."""
    return copied(request.param, tmp_path)


def test_the_module_gets_the_arguments_and_the_programs_path(hook: Hook) -> None:
    hook.module.write_text(TELLS)
    for arguments in ([], ["attach", "--device", "mlx5_5"]):
        done = hook.start(*arguments)
        told = f"{arguments} {hook.program} 0o22 "
        assert (done.returncode, done.stdout[: len(told)], done.stderr) == (7, told, "")


def test_a_guards_program_behind_a_symbolic_link_finds_its_module(tmp_path: Path) -> None:
    """That of earlier releases was one file, and base specs and definitions may name such a link."""
    hook = copied(GUARD, tmp_path)
    link = Hook(program=tmp_path / "elsewhere" / GUARD)
    link.folder.mkdir()
    link.program.symlink_to(hook.program)
    assert link.works()
    spec = json.loads(link.start("spec", given="{}").stdout)
    assert spec["hooks"]["createRuntime"][0]["path"] == str(hook.program)


def test_it_is_compiled_once(hook: Hook) -> None:
    assert hook.works()
    (file,) = hook.compiled()
    before = file.stat().st_mtime_ns, file.read_bytes()
    assert hook.works()
    assert [(it.stat().st_mtime_ns, it.read_bytes()) for it in hook.compiled()] == [before]


def test_another_module_in_its_place_is_what_runs(hook: Hook) -> None:
    assert hook.works()
    hook.module.write_text(TELLS)
    assert hook.start().returncode == 7


def test_nothing_else_is_imported_from_its_folder(hook: Hook) -> None:
    for name in ("os", "syslog", "_json", "json", "time", "_socket", "socket", "resource", "importlib", "encodings"):
        (hook.folder / f"{name}.py").write_text(f"open({str(hook.folder / 'imported')!r}, 'a').write({name!r})\n")
    assert hook.start(hook.verbs[0], "--device", "mlx5_5").returncode == 1
    hook.module.write_text(TELLS)
    assert str(hook.folder) not in hook.start().stdout.split()[-1]
    hook.module.unlink()
    assert hook.start("attach").returncode == 1
    assert not (hook.folder / "imported").exists()


@pytest.mark.parametrize("umask", ["000", "002", "022"])
def test_only_its_owner_writes_compiled_code_and_the_umask_stays(hook: Hook, umask: str) -> None:
    """Who can write there is root: an OCI runtime runs the hook."""
    hook.module.write_text(TELLS)
    told = hook.start(umask=umask).stdout
    assert told.split()[2] == oct(int(umask, 8)), "an OCI runtime that it becomes makes files, too"
    made = (hook.folder / "__pycache__", *hook.compiled())
    modes = {it.name.partition(".")[0]: it.stat().st_mode & 0o777 for it in made}
    assert modes == {"__pycache__": 0o755, hook.module.stem: 0o644}


def test_where_compiled_code_cannot_be_written_it_works_without(hook: Hook) -> None:
    (hook.folder / "__pycache__").write_text("a file where the folder would be\n")
    assert hook.works()


@pytest.mark.parametrize("size", [0, 8, 16, 500, -1])
def test_compiled_code_that_was_cut_is_left_aside(hook: Hook, size: int) -> None:
    """On a full disk Python 3.11 left such files, and failed to import the module from then on."""
    assert hook.works()
    (file,) = hook.compiled()
    file.write_bytes(file.read_bytes()[:size])
    assert hook.works()


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
def faulty(hook: Hook, request: pytest.FixtureRequest) -> Hook:
    """A hook that was used before, with a module that cannot be."""
    assert hook.works()
    fault: Fault = request.param
    fault(hook.module)
    return hook


def test_without_its_module_it_refuses_and_says_what_to_do(faulty: Hook) -> None:
    for verb in (*faulty.verbs, ""):
        done = faulty.start(verb, given=PLAIN)
        assert done.stdout == "", "for podman an answer of `prepare` would be the container's configuration"
        ended = Ended(code=done.returncode, error=done.stderr)
        assert ended.refused_with == "OCI-STATE"
        words = (faulty.module.name, str(faulty.program), faulty.advice)
        assert [it for it in words if it not in ended.error] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_docker_shows_that_and_the_oci_runtime_is_not_run(fault: Fault, tmp_path: Path) -> None:
    faulty = copied(OCI, tmp_path)
    fault(faulty.module)
    runtime, log = tmp_path / "runtime", tmp_path / "log.json"
    runtime.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    runtime.chmod(0o755)
    log.write_text('{"level":"warning","msg":"before"}\n')
    words = ("--root", "/r", "--log", str(log), "--log-format", "json", "create", "--bundle", str(tmp_path), "ab12")
    done = faulty.start("create", "--", str(runtime), *words)
    assert (done.returncode, (tmp_path / "was-run").exists()) == (1, False)
    assert json.loads(log.read_text().splitlines()[-1]) == {"level": "error", "msg": done.stderr.rstrip("\n")}
    done = faulty.start("create", "--", str(runtime), "create", "ab12")
    assert Ended(code=done.returncode, error=done.stderr).refused_with == "OCI-STATE", "without a log, too"


def test_a_module_that_is_put_there_again_is_used(hook: Hook) -> None:
    hook.module.unlink()
    assert hook.start("attach").returncode == 1
    hook.copy_module()
    assert hook.works()
