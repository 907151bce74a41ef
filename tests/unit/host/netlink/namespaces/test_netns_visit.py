"""A thread that is in another namespace for a moment, and then where it was. The kernel is asked where it is."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError, NamespaceError
from nri_rdma.host.netlink.namespaces.netns_visit import be_home, is_own, visiting
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
        assert go.wait(30)
        seen.append(where())

    thread = threading.Thread(target=look)
    thread.start()
    assert begun.wait(30)
    with visiting(pod):
        go.set()
        thread.join(30)
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


STUCK = """
import ctypes, errno, os, sys
from nri_rdma.host.netlink.namespaces import netns_visit
from nri_rdma.observe.logs import set_up_logging

set_up_logging("info", "text")

class Libc:  # setns has no memory for those who go home
    def __init__(self):
        self.home, self.libc = os.stat("/proc/self/ns/net").st_ino, ctypes.CDLL(None, use_errno=True)

    def setns(self, fd, kind):
        if os.fstat(fd).st_ino == self.home:
            ctypes.set_errno(errno.ENOMEM)
            return -1
        return self.libc.setns(fd, kind)

netns_visit._libc = Libc()
with netns_visit.visiting(os.open(sys.argv[1], os.O_RDONLY)):
    print("inside", flush=True)
print("home", flush=True)
"""


@pytest.mark.root
def test_a_visitor_that_cannot_come_home_ends_the_process(linux: LinuxMachine) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK, linux.pod_path], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (os.EX_OSERR, "inside\n")
    assert "a thread cannot leave a pod's network namespace" in done.stderr
    assert "ENOMEM" in done.stderr


def test_the_processes_own_namespace_is_known(own: int, file: int) -> None:
    assert is_own(os.fstat(own))
    assert not is_own(os.fstat(file))


@pytest.mark.root
def test_a_pods_namespace_is_not_the_processes_own(pod: int) -> None:
    assert not is_own(os.fstat(pod))
