"""The last look at host and pod, before anything moves."""

import errno
from collections.abc import Collection, Mapping
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError, Namespace, Survey
from nri_rdma.errors import AttachError, PlacementError
from nri_rdma.model.link import LinkState
from nri_rdma.model.usage import HostSocket
from nri_rdma.observe.spans import current_span
from tests.fakes.kernel import Address, FakeKernel, World
from tests.unit.attach.rdma_life import begin
from tests.unit.rigs.attachments import SOON, Rig


class _Kernel(FakeKernel):
    """Notes in which span sockets are looked for, and can refuse to capture."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.looked: list[str] = []
        self.refuses = False

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        if sockets:
            span = current_span()
            self.looked.append(span.name if span else "")
        return super().survey(ifindexes, sockets=sockets)

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        if self.refuses:
            raise KernelError("read links", errno.ENOBUFS)
        return super().capture(namespace, ifindexes, unreturnable=unreturnable)


@pytest.fixture
def used(world: World) -> World:
    """A socket of the host has an address of the rail."""
    rail = next(iter(world.host.links.values()))
    rail.add_address(Address(interface=ip_interface("10.0.0.5/24")))
    world.sockets.append(HostSocket(protocol="tcp", address=ip_address("10.0.0.5"), port=4420))
    return world


def test_who_uses_the_devices_is_looked_for_before_anything_moves(world: World, tmp_path: Path) -> None:
    kernel = _Kernel(world)
    rig = Rig(state=tmp_path, world=world, kernel=kernel)
    begin(rig).attach_done.result(SOON)
    assert kernel.looked == ["capture"]
    rig.close()


@pytest.mark.parametrize("refuses", [False, True], ids=["alone", "with a capture that fails"])
def test_what_the_look_finds_refuses_the_pod_first(used: World, tmp_path: Path, refuses: bool) -> None:
    kernel = _Kernel(used)
    kernel.refuses = refuses
    rig = Rig(state=tmp_path, world=used, kernel=kernel)
    sandbox, before = begin(rig), used.snapshot()
    with pytest.raises(PlacementError, match="1 host socket"):
        sandbox.attach_done.result(SOON)
    assert used.snapshot() == before
    rig.close()


def test_a_capture_that_fails_refuses_the_pod(world: World, tmp_path: Path) -> None:
    kernel = _Kernel(world)
    kernel.refuses = True
    rig = Rig(state=tmp_path, world=world, kernel=kernel)
    with pytest.raises(AttachError, match="ENOBUFS"):
        begin(rig).attach_done.result(SOON)
    rig.close()
