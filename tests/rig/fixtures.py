"""pytest fixtures for tests against the real runtime; a conftest imports those it offers."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.rig import hoststate
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.fabric import Fabric
from tests.rig.node import load


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """One containerd for the whole run; tests that end or restart it must start it again."""
    with Containerd(tmp_path_factory.mktemp("containerd")) as running:
        yield running


@pytest.fixture
def cri(containerd: Containerd) -> Iterator[Cri]:
    """The runtime's CRI; what a test leaves of pods is removed after it."""
    yield containerd.cri
    for pod in containerd.cri.pods():
        containerd.cri.delete_pod(pod)


@pytest.fixture
def host_equal() -> Iterator[None]:
    """The host's network after the test is what it was before; name it before the fixtures that change the host."""
    before = hoststate.take()
    yield
    # Namespaces, and what is in them, end in the kernel's own time.
    with suppress(DeadlineError):
        wait_until(lambda: not hoststate.difference(before, hoststate.take()), "the host to be as before", 3)
    found = hoststate.difference(before, hoststate.take())
    assert not found, "\n".join(found)


@pytest.fixture
def eight() -> Iterator[Fabric]:
    """The node "eight" on this host."""
    with Fabric(load("eight")) as fabric:
        yield fabric
