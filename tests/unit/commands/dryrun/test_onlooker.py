"""Who only looks opens no pod's namespace, and takes its links to be as runtimes make them."""

import errno
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.commands.dryrun.onlooker import Onlooker
from nri_rdma.commands.explain.explanation import POD_LINKS
from tests.fakes.kernel import FakeKernel, World


@pytest.fixture
def world() -> World:
    world = World()
    world.add_link(world.host, "rail0")
    return world


def test_a_pods_namespace_is_named_and_not_opened(world: World, tmp_path: Path) -> None:
    path = tmp_path / "pod"
    path.touch()  # no network namespace: it could not be opened
    onlooker = Onlooker(FakeKernel(world), POD_LINKS)
    namespace = onlooker.open_namespace(str(path))
    assert (namespace.identity.path, namespace.is_host, world.held) == (str(path), False, 0)
    assert [link.name for link in onlooker.links(namespace)] == ["lo", "eth0"]
    assert [link.name for link in onlooker.links(onlooker.host) if link.name != "lo"] == ["rail0"]


def test_the_own_namespace_is_known_as_the_hosts(world: World) -> None:
    assert Onlooker(FakeKernel(world), POD_LINKS).open_namespace("/proc/self/ns/net").is_host


def test_a_namespace_that_is_not_there_is_the_kernels_error(world: World, tmp_path: Path) -> None:
    with pytest.raises(KernelError) as caught:
        Onlooker(FakeKernel(world), POD_LINKS).open_namespace(str(tmp_path / "gone"))
    assert caught.value.errno == errno.ENOENT
