"""pytest fixtures for tests against the real runtime; a conftest imports those it offers."""

import zlib
from collections.abc import Iterator

import pytest

from tests.rig import cache, hoststate
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri
from tests.rig.crio import Crio
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.node import load
from tests.rig.runtime import Runtime


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """One runtime of each release for the whole run; tests that end or restart it must start it again."""
    release: cache.Release = request.param
    kind = Crio if release.is_crio else Containerd
    with kind(tmp_path_factory.mktemp("runtime"), release=release) as running:
        yield running


@pytest.fixture(scope="session")
def containerd(runtime: Runtime) -> Containerd:
    """The same, for tests that run on containerd only."""
    assert isinstance(runtime, Containerd)
    return runtime


def choose_releases(metafunc: pytest.Metafunc) -> None:
    """For a conftest's pytest_generate_tests: tests run on the first release of cache.ALWAYS. Those marked
    `every_runtime` are dealt out to all of these, always the same way, and with `differs=True` run on each of them.
    With --other-runtimes they run on all runtimes that are left."""
    if "runtime" not in metafunc.fixturenames:
        return
    releases: tuple[cache.Release, ...] = cache.ALWAYS[:1]
    mark = metafunc.definition.get_closest_marker("every_runtime")
    if mark is not None:
        releases = cache.ALWAYS if mark.kwargs.get("differs") else (_dealt(metafunc.definition.nodeid),)
        if metafunc.config.getoption("--other-runtimes"):
            releases = tuple(it for it in (*cache.ALWAYS, *cache.others()) if it not in releases)
    metafunc.parametrize("runtime", releases, ids=lambda it: it.name, indirect=True, scope="session")


def _dealt(name: str) -> cache.Release:
    """The release of cache.ALWAYS that a test of this name has in every process and every run."""
    return cache.ALWAYS[zlib.crc32(name.encode()) % len(cache.ALWAYS)]


@pytest.fixture
def cri(runtime: Runtime) -> Iterator[Cri]:
    """The runtime's CRI; what a test leaves of pods is removed after it."""
    yield runtime.cri
    for pod in runtime.cri.pods():
        runtime.cri.delete_pod(pod)


@pytest.fixture
def host_equal() -> Iterator[None]:
    """The host's network after the test is what it was before; name it before the fixtures that change the host."""
    before = hoststate.take()
    yield
    # Namespaces, and what is in them, end in the kernel's own time.
    wait_until(
        lambda: not hoststate.difference(before, hoststate.take()),
        lambda: "\n".join(["the host to be as before", *hoststate.difference(before, hoststate.take())]),
        3,
    )


@pytest.fixture
def eight() -> Iterator[Fabric]:
    """The node "eight" on this host."""
    with Fabric(load("eight")) as fabric:
        yield fabric
