"""Go programs are built when the first test asks for one, which takes longer than a test may otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import golang
from tests.interop.missing import leave_out
from tests.interop.parties import CALLERS, SERVERS, Caller

HERE = Path(__file__).parent
PAIRS = [(caller, server) for server in SERVERS for caller in CALLERS]
GoProgram = Callable[[str], Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(golang.BUILD_TIMEOUT_S + 60))


@pytest.fixture(scope="session")
def go_program() -> GoProgram:
    """The built program of that name, or a skip (in CI a failure) that says what this machine lacks."""

    def built(name: str) -> Path:
        try:
            return golang.program(name)
        except golang.MissingError as missing:
            leave_out(str(missing))

    return built


@pytest.fixture(params=PAIRS, ids=[f"{caller} calls {server}" for caller, server in PAIRS])
def pair(request: pytest.FixtureRequest, go_program: GoProgram) -> tuple[str, str]:
    """Who calls whom; a skip when one of them has to be built in Go and cannot be."""
    caller, server = request.param
    if "go" in (caller, server):
        go_program("peer")
    return caller, server


@pytest.fixture
def caller(pair: tuple[str, str], tmp_path: Path) -> Iterator[Caller]:
    """The client of the pair, connected to its server."""
    name, server = pair
    with SERVERS[server](tmp_path / "peer.sock"), CALLERS[name](tmp_path / "peer.sock") as caller:
        yield caller
