"""What pins a namespace: one descriptor, sockets while there is something to do, and nothing once it is let go."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.link_state import parse_link, read_links
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.netlink.namespaces import netns_visit
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace, OpenCounts, inside
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.host.netlink.sockets.route_sockets import IDLE_MAX
from nri_rdma.host.netlink.sockets.spare_sockets import momentary
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors

pytestmark = pytest.mark.root
SOON = 20.0


@pytest.fixture
def kernel(linux: LinuxMachine) -> Iterator[LinuxKernel]:
    assert isinstance(linux.kernel, LinuxKernel)
    yield linux.kernel
    linux.kernel.host.close()


@pytest.fixture
def pod(kernel: LinuxKernel, linux: LinuxMachine) -> Iterator[HeldNamespace]:
    held = kernel.open_namespace(linux.pod_path)
    yield held
    held.close()


class Hanging:
    """Calls that are inside a namespace and do not return until they are let."""

    def __init__(self, namespace: HeldNamespace, calls: int) -> None:
        self._go, self._inside = threading.Event(), threading.Barrier(calls + 1)
        self._callers = ThreadPoolExecutor(calls)
        self.results: list[Future[int]] = [self._callers.submit(self._call, namespace) for _ in range(calls)]
        self._inside.wait(SOON)

    def _call(self, namespace: HeldNamespace) -> int:
        return inside(namespace, "hang", self._hang)

    def _hang(self, route: RouteSocket) -> int:
        self._inside.wait(SOON)
        assert self._go.wait(SOON)
        return route.cookie()

    def let_go(self) -> None:
        self._go.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._go.set()
        self._callers.shutdown()


@contextmanager
def _nothing_left() -> Iterator[None]:
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    yield
    assert open_descriptors() <= descriptors
    assert set(threading.enumerate()) <= threads


def _own_namespace() -> tuple[int, int]:
    stat = Path("/proc/thread-self/ns/net").stat()
    return stat.st_dev, stat.st_ino


def test_calls_run_inside_and_the_caller_is_outside_again(
    kernel: LinuxKernel, pod: HeldNamespace, linux: LinuxMachine
) -> None:
    outside = Path("/proc/thread-self/ns/net").stat().st_ino
    for namespace, place in ((pod, POD), (kernel.host, HOST)):
        expected = linux.path(place).stat()
        assert namespace.run(_own_namespace) == (expected.st_dev, expected.st_ino)
    assert Path("/proc/thread-self/ns/net").stat().st_ino == outside


def test_one_socket_serves_call_after_call_without_a_thread(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    kernel.routing(pod)  # from now on sockets for lists of routes are kept
    with _nothing_left():
        for _ in range(20):
            kernel.links(pod)
            kernel.routing(pod)
            kernel.rdma_devices(pod)
        assert pod.run(threading.get_ident) == threading.get_ident()


def test_a_namespace_at_rest_is_one_descriptor(kernel: LinuxKernel, linux: LinuxMachine) -> None:
    before, held = open_descriptors(), kernel.held()
    pod = kernel.open_namespace(linux.pod_path)
    kernel.links(pod)
    assert kernel.held() == OpenCounts(namespaces=held.namespaces + 1, sockets=held.sockets + 1, closing=0)
    pod.rest()
    assert len(open_descriptors() - before) == 1
    assert kernel.held() == OpenCounts(namespaces=held.namespaces + 1, sockets=held.sockets)
    kernel.links(pod)
    pod.close()
    assert open_descriptors() <= before
    assert kernel.held() == held


def test_a_call_that_hangs_keeps_no_other_waiting(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    with Hanging(kernel.host, 3), Hanging(pod, 1):
        assert kernel.links(kernel.host)
        assert kernel.links(pod)


def test_of_the_sockets_of_many_callers_few_stay(kernel: LinuxKernel) -> None:
    with Hanging(kernel.host, IDLE_MAX + 3):
        assert kernel.held().sockets == IDLE_MAX + 3
    wait_until(lambda: kernel.held().sockets == IDLE_MAX, "the others to be closed", SOON)


def test_a_namespace_that_is_closed_while_a_call_hangs_goes_with_its_return(
    kernel: LinuxKernel, linux: LinuxMachine
) -> None:
    with _nothing_left():
        pod = kernel.open_namespace(linux.pod_path)
        with Hanging(pod, 2) as hanging:
            pod.close()  # returns at once
            pod.close()
            with pytest.raises(KernelError) as caught:
                kernel.links(pod)
            assert caught.value.errno == errno.EBADF
            held = kernel.held()
            assert (held.namespaces, held.closing, held.sockets) == (2, 1, 3)
            hanging.let_go()
            assert {future.result(SOON) for future in hanging.results} == {pod.identity.cookie}
        wait_until(lambda: kernel.held().namespaces == 1, "the namespace to go", SOON)
        assert kernel.held().closing == 0


def test_a_socket_that_is_busy_when_a_namespace_is_put_to_rest_is_closed_with_its_call(
    kernel: LinuxKernel, pod: HeldNamespace
) -> None:
    with Hanging(pod, 1):
        pod.rest()
        assert kernel.held().sockets == 2
    wait_until(lambda: kernel.held().sockets == 1, "the socket to be closed", SOON)
    assert kernel.links(pod)


def test_what_a_call_opened_in_a_namespace_that_is_closed_meanwhile_goes_with_its_return(
    kernel: LinuxKernel, linux: LinuxMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is closed before the call is inside."""
    pod, entering = kernel.open_namespace(linux.pod_path), netns_visit.enter

    def close_and_enter(fd: int) -> None:
        monkeypatch.undo()
        pod.close()
        entering(fd)

    def ask() -> None:
        with momentary(socket.NETLINK_ROUTE):
            pass

    monkeypatch.setattr(netns_visit, "enter", close_and_enter)
    before = kernel.held().namespaces
    pod.run(ask)
    assert (pod.sockets, kernel.held().namespaces) == (0, before - 1)


def test_the_number_of_a_descriptor_in_use_does_not_become_anothers(kernel: LinuxKernel, linux: LinuxMachine) -> None:
    pod = kernel.open_namespace(linux.pod_path)
    with pod.descriptor() as fd:
        pod.close()
        assert os.fstat(fd).st_ino == linux.path(POD).stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(KernelError), pod.descriptor():
        pass


def test_a_descriptor_that_leads_elsewhere_is_not_followed(
    kernel: LinuxKernel, pod: HeldNamespace, linux: LinuxMachine
) -> None:
    pod.rest()
    other = os.open(linux.path("peers"), os.O_RDONLY)
    os.dup2(other, pod.fd)
    os.close(other)
    before = kernel.held()
    for use in (lambda: kernel.links(pod), lambda: pod.run(_own_namespace)):
        with pytest.raises(KernelError) as caught:
            use()
        assert caught.value.errno == errno.ESTALE
    assert kernel.held() == before


def test_what_a_call_raises_passes_and_its_socket_serves_on(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    def fail(_route: RouteSocket) -> None:
        raise ZeroDivisionError

    before = kernel.held()
    with pytest.raises(ZeroDivisionError):
        inside(pod, "fail", fail)
    assert kernel.held() == before
    assert kernel.links(pod)


def test_a_socket_in_doubt_is_replaced(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    before = kernel.held()
    pod.ask(RouteSocket.close)
    with pytest.raises(KernelError) as caught:
        pod.ask(read_links)
    assert caught.value.errno == errno.EBADF
    assert len(pod.ask(read_links)) == 1
    assert kernel.held() == before


def test_a_socket_is_asked_by_the_caller_and_tells_of_the_pod(pod: HeldNamespace, linux: LinuxMachine) -> None:
    linux.add_link("inside0", "02:11:00:00:00:09", POD)
    shown = {link.name for link in (parse_link(message) for message in pod.ask(read_links))}
    assert shown == {"lo", "inside0"}
    assert pod.ask(lambda _route: threading.get_ident()) == threading.get_ident()


def test_in_the_namespace_of_the_process_nobody_enters_anything(
    pod: HeldNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = LinuxKernel().host
    process = Path("/proc/self/ns/net").stat()
    monkeypatch.setattr(netns_visit, "enter", lambda _fd: pytest.fail("it was entered"))
    assert own.run(_own_namespace) == (process.st_dev, process.st_ino)
    assert own.sockets == 1
    own.close()


def test_who_is_in_a_pod_is_not_taken_for_somebody_on_the_host(pod: HeldNamespace) -> None:
    own = LinuxKernel().host
    with pytest.raises(KernelError) as caught:
        pod.run(lambda: own.run(_own_namespace))
    assert caught.value.errno == errno.ESTALE
    own.close()


def test_many_callers_at_once_leave_nothing(linux: LinuxMachine) -> None:
    with _nothing_left():
        kernel = LinuxKernel(str(linux.path(HOST)))

        def come_and_go(number: int) -> int:
            pod = kernel.open_namespace(linux.pod_path)
            found = len(kernel.links(pod))
            if number % 3 == 0:
                pod.rest()
            kernel.links(kernel.host)
            pod.close()
            return found

        with ThreadPoolExecutor(8) as callers:
            assert set(callers.map(come_and_go, range(200))) == {1}
        assert kernel.held().namespaces == 1
        kernel.host.close()
        assert kernel.held() == OpenCounts()


def test_a_namespace_that_cannot_be_opened_leaves_nothing(kernel: LinuxKernel, tmp_path: Path) -> None:
    kernel.links(kernel.host)
    no_namespace = tmp_path / "file"
    no_namespace.touch()
    with _nothing_left():
        for path in (no_namespace, tmp_path / "no"):
            with pytest.raises(KernelError):
                kernel.open_namespace(str(path))
    assert kernel.held().namespaces == 1
