"""Options of the whole suite."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import parts
from tests.durations import Durations

_PATTERN = "test_*.py"
_CHOSEN = pytest.StashKey[frozenset[str] | None]()
"""The files of the part that the command line names; None: all."""


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
    """Measure how long each file takes, and choose the files of the part."""
    record, part = config.getoption("--record"), config.getoption("--part")
    path = Path(record) if record else config.rootpath / "build/durations.json"
    config.pluginmanager.register(Durations(path, shows=record is None))
    config.stash[_CHOSEN] = None if part is None else parts.choose(part, _files(config), parts.read_seed())


def _files(config: pytest.Config) -> Iterator[str]:
    """Every file of tests that the arguments name, or that is below a folder that they name."""
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        for file in path.rglob(_PATTERN) if path.is_dir() else (path,):
            yield file.relative_to(config.rootpath).as_posix()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the files of other parts unread: all of them take each part 17 s."""
    return True if collection_path.match(_PATTERN) and _is_of_another_part(collection_path, config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those out that the command line names, which pytest reads all the same."""
    files = {item.path: _is_of_another_part(item.path, config) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if files[item.path]])
    items[:] = [item for item in items if not files[item.path]]


def _is_of_another_part(path: Path, config: pytest.Config) -> bool:
    chosen = config.stash[_CHOSEN]
    return chosen is not None and path.relative_to(config.rootpath).as_posix() not in chosen


def pytest_collection_finish() -> None:
    """What the suite is made of is no garbage: to look through it again and again takes an eighth of the time."""
    gc.collect()
    gc.freeze()
