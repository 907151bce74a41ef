"""A thread that is in another namespace for a moment, and then where it was. The kernel is asked where it is."""

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError, NamespaceError
from nri_rdma.host.netlink import netns_visit
from nri_rdma.host.netlink.netns_visit import be_home, is_own, visiting
from tests.contract.machines import POD, LinuxMachine


@pytest.fixture
def own() -> Iterator[int]:
    """A descriptor of this process's own namespace."""
    fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def pod(linux: LinuxMachine) -> Iterator[int]:
    """A descriptor of a pod's namespace."""
    fd = os.open(linux.pod_path, os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of no namespace."""
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], int]], int]]:
    """Runs things one after the other in a thread that ends with the test."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda work: thread.submit(work).result(5)


def where() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


@pytest.mark.root
def test_a_visitor_is_in_the_pod_and_then_where_it_was(pod: int, linux: LinuxMachine) -> None:
    outside = where()
    with visiting(pod):
        assert where() == linux.path(POD).stat().st_ino
    assert where() == outside


@pytest.mark.root
def test_other_threads_stay_where_they_are(pod: int) -> None:
    outside, seen = where(), list[int]()
    begun, go = threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        assert go.wait(5)
        seen.append(where())

    thread = threading.Thread(target=look)
    thread.start()
    assert begun.wait(5)
    with visiting(pod):
        go.set()
        thread.join(5)
    assert seen == [outside]


@pytest.mark.root
def test_an_error_inside_passes_and_the_visitor_comes_home(pod: int) -> None:
    outside = where()
    with pytest.raises(ZeroDivisionError), visiting(pod):
        raise ZeroDivisionError
    assert where() == outside
    be_home()


def test_what_is_no_namespace_is_not_entered(file: int) -> None:
    with pytest.raises(NamespaceError, match="enter the network namespace: EINVAL") as caught, visiting(file):
        pytest.fail("it was entered")
    assert caught.value.errno == errno.EINVAL
    be_home()


@pytest.mark.root
def test_a_visitor_does_nothing_for_the_process_and_visits_nothing_else(pod: int) -> None:
    outside = where()
    with visiting(pod):
        for use in (be_home, visiting(pod).__enter__):
            with pytest.raises(KernelError) as caught:
                use()
            assert caught.value.errno == errno.ESTALE
    assert where() == outside


class _Libc:
    """setns that has no memory for those who go home, until it has."""

    def __init__(self, home: int) -> None:
        self._home, self._libc = home, ctypes.CDLL(None, use_errno=True)
        self.has_memory = False

    def setns(self, fd: int, kind: int) -> int:
        if os.fstat(fd).st_ino == self._home and not self.has_memory:
            ctypes.set_errno(errno.ENOMEM)
            return -1
        return int(self._libc.setns(fd, kind))


@pytest.mark.root
def test_a_visitor_that_cannot_come_home_is_refused_until_it_can(
    pod: int, linux: LinuxMachine, in_thread: Callable[[Callable[[], int]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, inside = where(), linux.path(POD).stat().st_ino
    libc = _Libc(outside)
    monkeypatch.setattr(netns_visit, "_libc", libc)

    def visit() -> int:
        with visiting(pod):
            return where()

    def stay() -> int:
        be_home()
        return where()

    for use in (visit, stay, visit, stay):
        with pytest.raises(NamespaceError) as caught:
            in_thread(use)
        assert caught.value.errno == errno.ENOMEM
        assert in_thread(where) == inside
    libc.has_memory = True
    assert in_thread(stay) == outside
    assert in_thread(visit) == inside
    assert in_thread(where) == outside


def test_the_processes_own_namespace_is_known(own: int, file: int) -> None:
    assert is_own(os.fstat(own))
    assert not is_own(os.fstat(file))


@pytest.mark.root
def test_a_pods_namespace_is_not_the_processes_own(pod: int) -> None:
    assert not is_own(os.fstat(pod))
