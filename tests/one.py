"""A few tests instead of all: `python -m tests.one T`, or `--changed [BASE]` for those of a change.

T is a file, a folder, file::test or a part of a test's name. A file that is no test stands for its tests: those of its
mirror in tests/unit, or those that name it, or those of its folder. A change is what differs from where the branch left
BASE, by default main.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath

from tests.parts import PROJECT, read_seed

QUICK = ("tests/unit/", "tests/contract/", "tests/house/")
"""Where tests take seconds; what is found here is not looked for elsewhere."""
RUNTIME = ("tests/runtime/", "tests/faults/")
"""Where tests need what `make containerd` makes."""
ELSEWHERE = {
    "tests/lab/guest/": ("lab", "tests.lab", "--"),
    "tests/cluster/": ("cluster", "tests.cluster"),
    "tests/oci/": ("podman", "tests.oci", "--"),
    "tests/image/": ("image-test", "tests.image", "--"),
}
"""Tests that do not run on this machine itself: make's name for all of them, and the module that runs some."""
HOUSE = "tests/house"
SHOWN = 4
_USAGE, _NOTHING_COLLECTED = 4, 5  # pytest.ExitCode
WHAT_TO_WRITE = """\
Next: write one of these
  T=tests/unit/engine/test_late.py             a file of tests; test_late is enough
  T=nri_rdma/engine/late.py                    the tests of a file
  T=tests/unit/engine                          a folder
  T=tests/unit/engine/test_late.py::test_NAME  one test
  T=kubelet                                    tests and files with this in their name"""


def chosen_for(wanted: str) -> list[str]:
    """Return pytest's arguments for a T: none if nothing is called so."""
    file, _, test = wanted.partition("::")
    files, path = test_files(), PROJECT / file
    if file and path.is_dir():
        room = "" if file.startswith("tests") else "tests/unit/"
        mirrored = f"{room}{file}".replace("tests/unit/nri_rdma", "tests/unit")
        return [mirrored] if (PROJECT / mirrored).is_dir() else []
    found = _nearest([it for it in files if f"/{it}".endswith((f"/{file}", f"/{file}.py"))])
    if file and not found and path.is_file():
        found = tests_of(file)
    if found or "/" in file or file.endswith(".py"):
        return [f"{it}::{test}" if test else it for it in found]
    words = [word.lower() for word in re.findall(r"\w+", wanted) if word not in ("and", "or", "not")]
    named = _nearest([it for it in files if _has_test_with(words, it)])
    return [*named, "-k", wanted] if named else []


def tests_of(file: str) -> list[str]:
    """Return the files of tests that a change of this file asks for."""
    path, files = PurePosixPath(file), test_files()
    if file in files:
        return [file]
    if path.name == "conftest.py":
        return _nearest([it for it in files if it.startswith(f"{path.parent}/")])
    room = f"tests/unit/{path.parent}/".replace("tests/unit/nri_rdma/", "tests/unit/")
    mirror = re.compile(rf"{room}test_{path.stem}(_\w+)?\.py")
    if mirrored := [it for it in files if mirror.fullmatch(it)]:
        return mirrored
    names = rf"\b{re.escape(path.name if path.suffix else file)}\b"
    if path.suffix == ".py":
        package, module = re.escape(".".join(path.parent.parts)), path.stem
        names = rf"\b{package}\.{module}\b|\bfrom {package} import .*\b{module}\b"
    named = [it for it in files if it.startswith(QUICK) and re.search(names, (PROJECT / it).read_text())]
    return named or [it for it in files if it.startswith(room) and room != "tests/unit/"]


def changed_files(base: str = "", folder: Path = PROJECT) -> list[str]:
    """Return what differs from where the branch left `base`, and what git does not know yet. Raises ValueError."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode and done.stderr:
            raise ValueError(done.stderr.strip())
        return done.stdout.splitlines()

    bases = [it for it in ([base] if base else ["main", "origin/main"]) if git("rev-parse", "--verify", "--quiet", it)]
    if not bases:
        raise ValueError(f"git knows no {base or 'main'}. Next: name the branch that yours began at: BASE=...")
    differing = git("diff", "--name-only", "--diff-filter=d", "--merge-base", bases[0])
    return sorted({*differing, *git("ls-files", "--others", "--exclude-standard")})


def chosen_for_change(files: Sequence[str]) -> list[str]:
    """Return the files of tests for files that differ; print why each, and what is left out."""
    there = test_files()
    chosen = [it for it in files if it in there and not it.startswith(tuple(ELSEWHERE))]
    if chosen:
        print(f"tests that differ: {_shown(chosen)}")
    for file in (it for it in files if it not in chosen):
        if place := next((it for it in ELSEWHERE if file.startswith(it)), ""):
            print(f"left out: {file}: make {f'test-one T={file}' if file in there else ELSEWHERE[place][0]}")
            continue
        tests = tests_of(file)
        print(f"{file}: {_shown(tests) or 'no quick test is for it'}")
        chosen += [it for it in tests if it not in chosen]
    if not files:
        return []
    print(f"{HOUSE}: has something to say about every change")
    print("left out: all other tests, also of code that calls what differs: `make test` has them")
    return [*(it for it in chosen if not it.startswith(f"{HOUSE}/")), HOUSE]


def test_files() -> list[str]:
    """Return every file of tests."""
    return sorted(it.relative_to(PROJECT).as_posix() for it in (PROJECT / "tests").rglob("test_*.py"))


def run(chosen: Sequence[str]) -> int:
    """Run pytest, or what runs the tests of another place; return its exit code."""
    for folder, (_, module, *dashes) in ELSEWHERE.items():
        if f"{chosen[0]}/".startswith(folder):
            files = [it for it in chosen if it.startswith("tests/")]
            words = [*dashes, *files, *([] if dashes else ["--"]), *chosen[len(files) :]]
            return subprocess.run([sys.executable, "-m", module, *words], cwd=PROJECT, check=False).returncode
    if any(f"{it}/".startswith(RUNTIME) for it in chosen):
        made = subprocess.run(["make", "--silent", "containerd"], cwd=PROJECT, check=False)
        if made.returncode != 0:
            return made.returncode
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *chosen], cwd=PROJECT, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    wanted, *more = arguments or [""]
    return run_changed(*more) if wanted == "--changed" else run_wanted(wanted)


def run_wanted(wanted: str) -> int:
    """Run the tests of a T, or say what to write; return the exit code."""
    chosen = chosen_for(wanted)
    if chosen and chosen[0] != wanted:
        print(f"{wanted}: {_shown([it for it in chosen if it.startswith('tests/')])}", flush=True)
    code = run(chosen) if chosen else _NOTHING_COLLECTED
    if code in (_USAGE, _NOTHING_COLLECTED):
        name = PurePosixPath(wanted.partition("::")[0]).name
        near = get_close_matches(name, {PurePosixPath(it).name for it in test_files()} - {name}, n=1, cutoff=0.8)
        said = f"no test is called {wanted}." if wanted else "T is missing."
        print(f"test-one: {' '.join([said, *(f'There is {it}.' for it in near)])} {WHAT_TO_WRITE}", file=sys.stderr)
    return code


def run_changed(base: str = "") -> int:
    """Run the tests of what differs from a branch; return the exit code."""
    try:
        chosen = chosen_for_change(changed_files(base))
    except ValueError as error:
        print(f"test-changed: {error}", file=sys.stderr)
        return 1
    if not chosen:
        print("test-changed: nothing differs. Next: `make test-one T=...` runs one test, `make test` all.")
        return 0
    seconds = sum(took for file, took in read_seed().items() if file in chosen or file.startswith(f"{HOUSE}/"))
    print(f"about {seconds:.0f} s", flush=True)
    return run(chosen)


def _nearest(files: Sequence[str]) -> list[str]:
    """Return those whose tests are quick, or those of this machine, or those of one other place."""
    quick = [it for it in files if it.startswith(QUICK)]
    here = [it for it in files if not it.startswith(tuple(ELSEWHERE))]
    places = [[it for it in files if it.startswith(place)] for place in ELSEWHERE]
    return next((found for found in (quick, here, *places) if found), [])


def _shown(files: Sequence[str]) -> str:
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return ", ".join(files[:SHOWN]) + more


def _has_test_with(words: Sequence[str], file: str) -> bool:
    names = re.findall(r"^\s*(?:async )?def (test_\w+)", (PROJECT / file).read_text(), re.MULTILINE)
    return any(word in name.lower() for word in words for name in (PurePosixPath(file).name, *names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
