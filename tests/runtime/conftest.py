"""What tests against a real runtime share."""

from collections.abc import Generator, Iterator

import pytest

from tests.rig.daemon import AnyDaemon, Daemon
from tests.rig.fabric import Fabric
from tests.rig.fixtures import choose_releases, containerd, cri, eight, host_equal, runtime
from tests.rig.node import load
from tests.rig.runtime import Runtime

__all__ = ["containerd", "cri", "daemon", "eight", "host_equal", "node", "runtime"]

pytest_generate_tests = choose_releases
LOG_CHARACTERS = 20_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside a failure is the end of the log of each daemon that the test or its helpers had at hand."""
    report = yield
    if report.failed and call.excinfo is not None:
        at_hand = (it for entry in call.excinfo.traceback for it in entry.frame.f_locals.values())
        for log in dict.fromkeys(it.log for it in at_hand if isinstance(it, AnyDaemon)):
            report.sections.append(("the daemon's log", log[-LOG_CHARACTERS:]))
    return report


@pytest.fixture(scope="module")
def node() -> Iterator[Fabric]:
    """The node "eight", one for a module: every test gives it back as it was."""
    with Fabric(load("eight")) as fabric:
        yield fabric


@pytest.fixture(autouse=True)
def next_node(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that failed leaves the next one of its module a whole node: its pods may end after its daemon, and their
    netdevs, which are no hardware, with them. Who names `host_equal` has been judged by then."""
    yield
    node = request.node.funcargs.get("node")
    if isinstance(node, Fabric):
        node.bring_back()


@pytest.fixture
def daemon(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    """A daemon on that node, with the default pool opened for exclusive requests."""
    with Daemon(runtime, node) as running:
        yield running
