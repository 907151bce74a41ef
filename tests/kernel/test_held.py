"""What pins a namespace: one descriptor, threads while there is something to do, and nothing once it is let go."""

import errno
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.kernel import LinuxKernel
from nri_rdma.host.netlink.links import parse_link, read_links
from nri_rdma.host.netlink.namespace import IDLE_MAX, Held, HeldNamespace
from nri_rdma.host.netlink.netns_thread import Inside
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.rig.deadline import wait_until

pytestmark = pytest.mark.root
SOON = 5.0


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """Sockets that earlier tests left to the collector would go while descriptors are counted here."""
    gc.collect()


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
        self.results: list[Future[int]] = [self._callers.submit(namespace.run, self._hang) for _ in range(calls)]
        self._inside.wait(SOON)

    def _hang(self, inside: Inside) -> int:
        self._inside.wait(SOON)
        assert self._go.wait(SOON)
        return inside.cookie

    def let_go(self) -> None:
        self._go.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._go.set()
        self._callers.shutdown()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a folder whose entries go while they are looked at


def _namespace_threads() -> int:
    return sum(1 for thread in threading.enumerate() if thread.name == "netns")


@contextmanager
def _nothing_left() -> Iterator[None]:
    before = _descriptors(), _namespace_threads()
    yield
    assert (_descriptors(), _namespace_threads()) == before


def _own_namespace(_inside: Inside) -> tuple[int, int]:
    stat = Path("/proc/thread-self/ns/net").stat()
    return stat.st_dev, stat.st_ino


def test_calls_run_inside_and_the_caller_stays_outside(
    kernel: LinuxKernel, pod: HeldNamespace, linux: LinuxMachine
) -> None:
    outside = Path("/proc/thread-self/ns/net").stat().st_ino
    for namespace, place in ((pod, POD), (kernel.host, HOST)):
        expected = linux.path(place).stat()
        assert namespace.run(_own_namespace) == (expected.st_dev, expected.st_ino)
    assert Path("/proc/thread-self/ns/net").stat().st_ino == outside


def test_one_thread_serves_call_after_call(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    before = _descriptors(), _namespace_threads()
    threads = {pod.run(lambda _inside: threading.get_ident()) for _ in range(20)}
    assert len(threads) == 1
    for _ in range(20):
        kernel.links(pod)
        kernel.rdma_devices(pod)
    assert (_descriptors(), _namespace_threads()) == before


def test_a_namespace_at_rest_is_one_descriptor(kernel: LinuxKernel, linux: LinuxMachine) -> None:
    before, held = _descriptors(), kernel.held()
    pod = kernel.open_namespace(linux.pod_path)
    kernel.links(pod)
    assert kernel.held() == Held(
        namespaces=held.namespaces + 1, threads=held.threads + 1, sockets=held.sockets + 1, closing=0
    )
    pod.rest()
    assert _descriptors() == before + 1
    assert kernel.held() == Held(namespaces=held.namespaces + 1, threads=held.threads, sockets=held.sockets)
    kernel.links(pod)
    pod.close()
    assert (_descriptors(), kernel.held()) == (before, held)


def test_a_call_that_hangs_keeps_no_other_waiting(kernel: LinuxKernel, pod: HeldNamespace) -> None:
    with Hanging(kernel.host, 3), Hanging(pod, 1):
        assert kernel.links(kernel.host)
        assert kernel.links(pod)


def test_as_many_threads_stay_as_there_are_workers(kernel: LinuxKernel) -> None:
    before = _namespace_threads() - kernel.held().threads
    with Hanging(kernel.host, IDLE_MAX + 3):
        assert kernel.held().threads == IDLE_MAX + 3
    wait_until(lambda: kernel.held().threads == IDLE_MAX, "the others to end", SOON)
    assert _namespace_threads() == before + IDLE_MAX


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
            assert (held.namespaces, held.closing, held.threads) == (2, 1, 3)
            hanging.let_go()
            assert {future.result(SOON) for future in hanging.results} == {pod.identity.cookie}
        wait_until(lambda: kernel.held().namespaces == 1, "the namespace to go", SOON)
        assert kernel.held().closing == 0


def test_threads_that_are_busy_when_a_namespace_is_put_to_rest_end_with_their_call(
    kernel: LinuxKernel, pod: HeldNamespace
) -> None:
    with Hanging(pod, 1):
        pod.rest()
        assert kernel.held().threads == 2
    wait_until(lambda: kernel.held().threads == 1, "the thread to end", SOON)
    assert kernel.links(pod)


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
    with pytest.raises(KernelError) as caught:
        kernel.links(pod)
    assert caught.value.errno == errno.ESTALE
    assert kernel.held() == before


def test_what_a_call_raises_passes_and_its_thread_serves_on(pod: HeldNamespace) -> None:
    def fail(_inside: Inside) -> None:
        raise ZeroDivisionError

    thread = pod.run(lambda _inside: threading.get_ident())
    with pytest.raises(ZeroDivisionError):
        pod.run(fail)
    assert pod.run(lambda _inside: threading.get_ident()) == thread


def test_a_socket_in_doubt_is_replaced(pod: HeldNamespace) -> None:
    def lose_answers(inside: Inside) -> None:
        inside.route.close()
        with pytest.raises(KernelError) as caught:
            inside.route.dump(18, bytes(16), "list links")
        assert caught.value.errno == errno.EBADF

    pod.run(lose_answers)
    assert len(pod.run(lambda inside: inside.route.dump(18, bytes(16), "list links"))) == 1


def test_a_socket_is_asked_by_the_caller_and_tells_of_the_pod(pod: HeldNamespace, linux: LinuxMachine) -> None:
    linux.add_link("inside0", "02:11:00:00:00:09", POD)
    shown = {link.name for link in (parse_link(message) for message in pod.ask(read_links))}
    assert shown == {"lo", "inside0"}
    assert pod.ask(lambda _route: threading.get_ident()) == threading.get_ident()


def test_a_socket_in_doubt_is_replaced_for_who_borrows_it_too(pod: HeldNamespace) -> None:
    pod.run(lambda inside: inside.route.close())
    with pytest.raises(KernelError):
        pod.ask(read_links)
    assert len(pod.ask(read_links)) == 1


def test_in_the_namespace_of_the_process_the_caller_does_it_itself(pod: HeldNamespace) -> None:
    own = LinuxKernel().host
    before = _descriptors(), _namespace_threads()
    assert own.run(lambda _inside: threading.get_ident()) == threading.get_ident()
    process = Path("/proc/self/ns/net").stat()
    assert own.run(_own_namespace) == (process.st_dev, process.st_ino)
    assert (own.threads, own.sockets) == (0, 1)
    assert (_descriptors(), _namespace_threads()) == before
    own.close()


def test_a_thread_of_a_pod_is_not_taken_for_one_of_the_host(pod: HeldNamespace) -> None:
    own = LinuxKernel().host
    with pytest.raises(KernelError) as caught:
        pod.run(lambda _inside: own.run(_own_namespace))
    assert caught.value.errno == errno.ESTALE
    own.close()


def test_a_pod_that_is_not_waited_for_tells_at_its_first_use_that_it_is_none(
    kernel: LinuxKernel, tmp_path: Path
) -> None:
    no_namespace = tmp_path / "file"
    no_namespace.touch()
    with _nothing_left():
        pod = kernel.open_namespace(str(no_namespace), entered=False)
        for use in (lambda: kernel.links(pod), lambda: pod.identity, lambda: kernel.rdma_devices(pod)):
            with pytest.raises(KernelError) as caught:
                use()
            assert caught.value.errno == errno.EINVAL
        pod.close()


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
        assert kernel.held() == Held()


def test_a_namespace_that_cannot_be_opened_leaves_nothing(kernel: LinuxKernel, tmp_path: Path) -> None:
    kernel.links(kernel.host)
    no_namespace = tmp_path / "file"
    no_namespace.touch()
    with _nothing_left():
        for path in (no_namespace, tmp_path / "no"):
            with pytest.raises(KernelError):
                kernel.open_namespace(str(path))
    assert kernel.held().namespaces == 1
