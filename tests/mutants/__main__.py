"""Plants mistakes in the code, one at a time, and runs the tests that reach it: `make mutants SEED=1 COUNT=40`.

The seed decides which mistakes are planted, so that a run can be repeated. A mistake is caught when a test fails with
it that passes without it. Ends with 1 when fewer than 95 of 100 are caught.

The first run of a state of the code measures which test runs which line; that takes as long as the tests twice.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from queue import SimpleQueue

from tests.mutants import reach
from tests.mutants.mutations import Mutation, mutations
from tests.mutants.tree import FOLDER, Run, Tree, fingerprint
from tests.rig.cache import PROJECT

ROOMS = ("attach", "cdi", "daemon", "decide", "doors", "engine", "model", "tasks", "text")
"""The folders of nri_rdma that decide and act. The adapters of `host` meet the kernel in the virtual machine only."""
WANTED_PERCENT = 95
JOBS = 2
_Reached = Mapping[str, Mapping[int, Sequence[str]]]


@dataclass(frozen=True)
class Mutant:
    """A mistake in a file."""

    file: str
    mutation: Mutation

    def __str__(self) -> str:
        mutation = self.mutation
        return f"{self.file}:{mutation.place[0]}  {mutation.kind}: {mutation.before} -> {mutation.after}"


@dataclass(frozen=True)
class Verdict:
    """What the tests said."""

    mutant: Mutant
    caught: bool
    why: str


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which mistakes: the same seed plants the same ones")
    parser.add_argument("--count", type=int, default=40, help="how many")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of nri_rdma; default: %(default)s")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count is {options.count}. Next: give 1 or more.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    candidates = [*_candidates(options.rooms)]
    planted = random.Random(options.seed).sample(candidates, min(options.count, len(candidates)))
    print(f"{len(candidates)} mistakes can be planted; seed {options.seed} plants {len(planted)}", flush=True)
    trees = [Tree(number) for number in range(1, JOBS + 1)]
    reached = _reached(trees)
    verdicts = [*_verdicts(planted, trees, reached)]
    survivors = [verdict for verdict in verdicts if not verdict.caught]
    percent = 100 * (len(verdicts) - len(survivors)) / len(verdicts)
    print(f"caught {len(verdicts) - len(survivors)} of {len(verdicts)}: {percent:.1f} % (seed {options.seed})")
    for verdict in survivors:
        print(f"  survived: {verdict.mutant}; {verdict.why}")
    return 0 if percent >= WANTED_PERCENT else 1


def _candidates(rooms: Sequence[str]) -> Iterator[Mutant]:
    for room in rooms:
        for path in sorted((PROJECT / "nri_rdma" / room).rglob("*.py")):
            file = path.relative_to(PROJECT).as_posix()
            yield from (Mutant(file, mutation) for mutation in mutations(path.read_text()))


def _reached(trees: Sequence[Tree]) -> _Reached:
    """Return the tests of each line; measured once for each state of the code."""
    folder = FOLDER / f"reach-{fingerprint()}"
    parts = [f"{number}/{len(trees)}" for number in range(1, len(trees) + 1)]
    whole = folder / "whole"
    if not whole.exists():
        folder.mkdir(exist_ok=True)
        print("measuring which test runs which line: minutes", flush=True)
        begun = time.monotonic()
        with ThreadPoolExecutor(len(trees)) as pool:
            files = [folder / part.replace("/", "-") for part in parts]
            runs = [*pool.map(Tree.measure, trees, parts, files)]
        if not all(runs):
            print(
                f"warning: tests fail without any mistake, see {FOLDER}/measure-*; they cannot catch one",
                file=sys.stderr,
            )
        whole.touch()
        print(f"measured in {time.monotonic() - begun:.0f} s", flush=True)
    merged: dict[str, dict[int, list[str]]] = {}
    for tree, part in zip(trees, parts, strict=True):
        for file, lines in reach.read(folder / part.replace("/", "-"), tree.path).items():
            for line, tests in lines.items():
                merged.setdefault(file, {}).setdefault(line, []).extend(tests)
    return merged


def _verdicts(planted: Sequence[Mutant], trees: Sequence[Tree], reached: _Reached) -> Iterator[Verdict]:
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)
    printing = threading.Lock()

    def tried(mutant: Mutant) -> Verdict:
        tree = free.get()
        try:
            verdict = _tried(mutant, tree, reached)
        finally:
            free.put(tree)
        with printing:
            print(f"{'caught  ' if verdict.caught else 'SURVIVED'}  {mutant}\n          {verdict.why}", flush=True)
        return verdict

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(tried, planted)


def _tried(mutant: Mutant, tree: Tree, reached: _Reached) -> Verdict:
    tests = order_of(mutant, reached)
    if not tests:
        return Verdict(mutant, caught=False, why="no test runs this line")
    path = tree.path / mutant.file
    source = path.read_text()
    while tests:
        path.write_text(mutant.mutation.planted(source))
        try:
            ended = tree.run(tests)
        finally:
            path.write_text(source)
        if ended.passed:
            return Verdict(mutant, caught=False, why=f"{len(tests)} tests run this line and pass")
        if not ended.failed and not tree.imports(tests):
            return Verdict(mutant, caught=False, why="its tests cannot be imported without it, either")
        unfair = [test for test in ended.failed if not tree.run([test]).passed]
        if not unfair:
            return Verdict(mutant, caught=True, why=_named(ended))
        tests = [test for test in tests if test not in unfair]
    return Verdict(mutant, caught=False, why="only tests run this line that fail without it, too")


def _named(ended: Run) -> str:
    return ended.failed[0] if ended.failed else "a test hangs, or its file cannot be imported"


def order_of(mutant: Mutant, reached: _Reached) -> list[str]:
    """Return the tests of its module's own test file, and those that run the lines of a mistake.

    A line is run once where its result is kept, and before all tests where an import runs it: others than the tests
    that run it may need it, too.
    """
    lines = reached.get(mutant.file, {})
    around = range(mutant.mutation.first_line, mutant.mutation.last_line + 1)
    inside = PurePosixPath(mutant.file).relative_to("nri_rdma")
    mirror = (PurePosixPath("tests/unit") / inside.with_name(f"test_{inside.name}")).as_posix()
    own = (test for row in lines.values() for test in row if test.startswith(f"{mirror}::"))
    tests = dict.fromkeys(own) | dict.fromkeys(test for line in around for test in lines.get(line, ()))
    room = f"tests/unit/{inside.parts[0]}/"

    def distance(test: str) -> int:
        file = test.partition("::")[0]
        return 0 if file == mirror else 1 if file.startswith(room) else 2

    return sorted(tests, key=distance)


if __name__ == "__main__":
    sys.exit(main())
