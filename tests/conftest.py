"""Options of the whole suite."""

import gc
from pathlib import Path

import pytest

from tests import parts
from tests.durations import Durations


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options must be known before the folders of tests are read."""
    parser.addoption(
        "--other-runtimes",
        action="store_true",
        help="tests marked every_runtime run on all runtimes that are here and on which `make test` does not run them",
    )
    parser.addoption(
        "--part",
        metavar="I/N",
        help="only one of N parts, which can run at the same time, each on a host of its own; `I/N@host`: all on this "
        "one; `machine`, `alone`: tests/parts.py",
    )
    parser.addoption(
        "--record", metavar="FILE", help="write the seconds that files of tests took here; who starts the parts asks"
    )
    parser.addoption("--long", action="store_true", help="restarts by the hundred, which take minutes")
    parser.addoption("--fault-seconds", metavar="S", default="30", help="how long the lab kills at random")
    parser.addoption("--every-fault", action="store_true", help="tests/faults: at every place, not at a few")


def pytest_configure(config: pytest.Config) -> None:
    """Measure how long each file takes."""
    record = config.getoption("--record")
    path = Path(record) if record else config.rootpath / "build/durations.json"
    config.pluginmanager.register(Durations(path, shows=record is None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the files of other parts out."""
    part = config.getoption("--part")
    if part is None:
        return
    files = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}
    chosen = parts.choose(part, files.values(), parts.read_seed())
    config.hook.pytest_deselected(items=[item for item in items if files[item] not in chosen])
    items[:] = [item for item in items if files[item] in chosen]


def pytest_collection_finish() -> None:
    """What the suite is made of is no garbage: to look through it again and again takes an eighth of the time."""
    gc.collect()
    gc.freeze()
