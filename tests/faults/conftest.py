"""The matrix: which of it runs, on which runtimes, and the table at its end."""

import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.arena import Arena
from tests.faults.tally import Tally
from tests.rig import cache
from tests.rig.fixtures import runtime
from tests.rig.runtime import Runtime

__all__ = ["runtime"]

FIRST = cache.ALWAYS[0]
SHORT, SHORT_OF_OTHERS = 5, 1
"""How many cases of each test run without --every-fault, on the first runtime and on each other."""
SAMPLE = 2
"""How many of them run on each other runtime with it."""
_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    """One seed for all choices."""
    seed = os.environ.get("NRI_RDMA_FAULT_SEED")
    config.stash[_TALLY] = Tally(seed=int(seed) if seed else random.SystemRandom().randrange(1 << 32))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test is for the runtimes of `make test`; which of its cases run on which is chosen below."""
    if "runtime" in metafunc.fixturenames:
        metafunc.parametrize("runtime", cache.ALWAYS, ids=lambda it: it.name, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All cases on the first runtime and some on each other; or, of each test, a few."""
    here = [item for item in items if item.path.parent.name == "faults"]
    chosen = _chosen(config, [item for item in here if isinstance(item, pytest.Function)])
    config.hook.pytest_deselected(items=[item for item in here if item.nodeid not in chosen])
    items[:] = [item for item in items if item not in here or item.nodeid in chosen]


def _chosen(config: pytest.Config, items: list[pytest.Function]) -> set[str]:
    choose = random.Random(config.stash[_TALLY].seed)
    groups: dict[tuple[str, str], list[str]] = {}
    for item in items:
        release = item.callspec.params["runtime"]
        assert isinstance(release, cache.Release)
        groups.setdefault((item.originalname, release.name), []).append(item.nodeid)
    every = config.getoption("--every-fault")
    chosen: set[str] = set()
    for (_, name), cases in groups.items():
        is_first = name == FIRST.name
        number = SHORT if is_first else SHORT_OF_OTHERS
        if every:
            number = len(cases) if is_first else SAMPLE
        chosen |= set(choose.sample(cases, min(number, len(cases))))
    return chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table."""
    tally = config.stash[_TALLY]
    if tally.outcomes:
        terminalreporter.section("what became of the pods")
        for line in tally.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    """The counts of the whole run."""
    return pytestconfig.stash[_TALLY]


@pytest.fixture
def choose(tally: Tally, request: pytest.FixtureRequest) -> random.Random:
    """For a test's own choices: the same for the same seed."""
    return random.Random(f"{tally.seed} {request.node.nodeid}")


class _Arenas:
    """The arena of a runtime: made anew after a test that did not leave it as it was."""

    def __init__(self, running: Runtime, tally: Tally) -> None:
        self._runtime = running
        self._tally = tally
        self._current: Arena | None = None

    def get(self) -> Arena:
        if self._current is None:
            self._current = Arena(self._runtime, self._tally)
        return self._current

    def discard(self) -> None:
        arena, self._current = self._current, None
        if arena is not None:
            arena.end()

    def discard_unfit(self) -> None:
        if self._current is not None and not self._current.is_fit():
            self.discard()


@pytest.fixture(scope="module")
def arenas(runtime: Runtime, tally: Tally) -> Iterator[_Arenas]:
    """Of this runtime; none is left for tests of something else."""
    kept = _Arenas(runtime, tally)
    yield kept
    kept.discard()


@pytest.fixture
def arena(arenas: _Arenas, choose: random.Random) -> Iterator[Arena]:
    """A node with its daemon, as every test must leave it."""
    current = arenas.get()
    current.guarded = choose.random() < 0.5
    yield current
    arenas.discard_unfit()
