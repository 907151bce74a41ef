"""Options of the whole suite."""

import gc

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options must be known before the folders of tests are read."""
    parser.addoption(
        "--built-runtimes",
        action="store_true",
        help="tests marked every_runtime run on the runtimes that `make runtimes` built, not on those of the set-up",
    )
    parser.addoption("--long", action="store_true", help="restarts by the hundred, which take minutes")


def pytest_collection_finish() -> None:
    """What the suite is made of is no garbage: to look through it again and again takes an eighth of the time."""
    gc.collect()
    gc.freeze()
