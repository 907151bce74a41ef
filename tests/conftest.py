"""Options of the whole suite."""

import gc

import pytest

from tests.durations import Durations


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options must be known before the folders of tests are read."""
    parser.addoption(
        "--built-runtimes",
        action="store_true",
        help="tests marked every_runtime run on the runtimes that `make runtimes` built, not on those of the set-up",
    )
    parser.addoption(
        "--part", metavar="I/N", help="only every N-th file of tests, from the I-th on: parts can run at the same time"
    )
    parser.addoption("--long", action="store_true", help="restarts by the hundred, which take minutes")
    parser.addoption("--fault-seconds", metavar="S", default="30", help="how long the lab kills at random")
    parser.addoption("--every-fault", action="store_true", help="tests/faults: at every place, not at a few")


def pytest_configure(config: pytest.Config) -> None:
    """Measure how long each file takes."""
    config.pluginmanager.register(Durations(config.rootpath / "build/durations.json"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the files of other parts out."""
    part = config.getoption("--part")
    if part is None:
        return
    first, _, count = part.partition("/")
    chosen = set(sorted({item.path for item in items})[int(first) - 1 :: int(count)])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
    items[:] = [item for item in items if item.path in chosen]


def pytest_collection_finish() -> None:
    """What the suite is made of is no garbage: to look through it again and again takes an eighth of the time."""
    gc.collect()
    gc.freeze()
