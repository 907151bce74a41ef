"""The look for who uses the devices goes on beside the capture: both are over before anything moves."""

import errno
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError, Namespace, Survey
from nri_rdma.errors import AttachError, PlacementError
from nri_rdma.model.link import LinkState
from nri_rdma.model.usage import HostSocket
from nri_rdma.observe.spans import current_span
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import Address, FakeKernel, World
from tests.unit.attach.rdma_life import begin
from tests.unit.rigs.attachments import SOON, Rig


class _Kernel(FakeKernel):
    """Notes in which span and thread sockets are looked for, and can refuse to capture."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.looked: list[tuple[str, str]] = []
        self.refuses = False

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        if sockets:
            span = current_span()
            self.looked.append((span.name if span else "", threading.current_thread().name))
        return super().survey(ifindexes, sockets=sockets)

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        if self.refuses:
            raise KernelError("read links", errno.ENOBUFS)
        return super().capture(namespace, ifindexes, unreturnable=unreturnable)


class _Later:
    """Begins work in a thread of its own, once it may."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()

    def __call__(self, key: str, work: Callable[[], None]) -> Future[None]:
        looker = Workers(1, name="looker")

        def wait_and_work() -> None:
            self.begun.set()
            assert self.may.wait(SOON)
            work()

        done = looker.submit(key, wait_and_work)
        done.add_done_callback(lambda _done: threading.Thread(target=looker.close).start())
        return done


@pytest.fixture
def used(world: World) -> World:
    """A socket of the host has an address of the rail."""
    rail = next(iter(world.host.links.values()))
    rail.add_address(Address(interface=ip_interface("10.0.0.5/24")))
    world.sockets.append(HostSocket(protocol="tcp", address=ip_address("10.0.0.5"), port=4420))
    return world


def test_nothing_moves_before_the_look_is_over(world: World, tmp_path: Path) -> None:
    later, kernel = _Later(), _Kernel(world)
    rig = Rig(state=tmp_path, world=world, kernel=kernel, beside=later)
    sandbox = begin(rig)
    assert later.begun.wait(SOON)
    with pytest.raises(TimeoutError):
        sandbox.attach_done.result(0.2)
    assert not any("move" in place or "journal" in place for place in rig.gate.passed)
    later.may.set()
    sandbox.attach_done.result(SOON)
    assert [(span, thread.partition("-")[0]) for span, thread in kernel.looked] == [("capture", "looker")]
    rig.close()


@pytest.mark.parametrize("refuses", [False, True], ids=["alone", "with a capture that fails"])
def test_what_the_look_finds_refuses_the_pod_first(used: World, tmp_path: Path, refuses: bool) -> None:
    later, kernel = _Later(), _Kernel(used)
    kernel.refuses = refuses
    rig = Rig(state=tmp_path, world=used, kernel=kernel, beside=later)
    sandbox, before = begin(rig), used.snapshot()
    later.may.set()
    with pytest.raises(PlacementError, match="1 host socket"):
        sandbox.attach_done.result(SOON)
    assert used.snapshot() == before
    rig.close()


def test_a_capture_that_fails_is_told_once_the_look_is_over(world: World, tmp_path: Path) -> None:
    later, kernel = _Later(), _Kernel(world)
    kernel.refuses = True
    rig = Rig(state=tmp_path, world=world, kernel=kernel, beside=later)
    sandbox = begin(rig)
    assert later.begun.wait(SOON)
    with pytest.raises(TimeoutError):
        sandbox.attach_done.result(0.2)
    later.may.set()
    with pytest.raises(AttachError, match="ENOBUFS"):
        sandbox.attach_done.result(SOON)
    rig.close()
