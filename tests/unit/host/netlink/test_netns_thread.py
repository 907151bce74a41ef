"""Threads that enter a namespace once, and the caller's own thread for the process's namespace."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links import parse_link, read_links
from nri_rdma.host.netlink.netns_thread import Inside, Insider, Resident, Spare, is_own
from nri_rdma.host.netlink.route_socket import RouteSocket
from tests.contract.machines import POD, LinuxMachine


@pytest.fixture
def own() -> Iterator[int]:
    """A descriptor of this process's own namespace."""
    fd = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of no namespace."""
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.fixture
def insider(linux: LinuxMachine) -> Iterator[Insider]:
    """A thread that has entered the namespace of a pod."""
    made = Insider()
    fd = os.open(linux.pod_path, os.O_RDONLY | os.O_CLOEXEC)
    made.enter(fd)
    assert made.cookie > 0
    os.close(fd)
    yield made
    made.end()
    made.join()


def where(_inside: object = None) -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


def names(route: RouteSocket) -> set[str]:
    return {parse_link(message).name for message in read_links(route)}


def spares() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "netns-spare"]


@pytest.mark.root
def test_work_is_done_inside_by_one_thread_and_the_caller_stays(insider: Insider, linux: LinuxMachine) -> None:
    outside = where()
    assert insider.run(where) == linux.path(POD).stat().st_ino
    threads = {insider.run(lambda _inside: threading.get_ident()) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert where() == outside


@pytest.mark.root
def test_a_lent_socket_is_asked_by_the_caller_and_tells_of_the_pod(insider: Insider, linux: LinuxMachine) -> None:
    linux.add_link("inside0", "02:11:00:00:00:09", POD)
    assert insider.lend(lambda _route: threading.get_ident()) == threading.get_ident()
    assert insider.lend(names) == {"lo", "inside0"}


@pytest.mark.root
def test_a_socket_in_doubt_is_replaced_inside(insider: Insider, linux: LinuxMachine) -> None:
    linux.add_link("inside0", "02:11:00:00:00:09", POD)
    cookie = insider.cookie
    insider.run(lambda inside: inside.route.close())
    with pytest.raises(KernelError):
        insider.lend(names)
    assert insider.lend(names) == {"lo", "inside0"}
    assert insider.cookie == cookie


@pytest.mark.root
def test_what_work_raises_passes_and_the_thread_serves_on(insider: Insider) -> None:
    def fail(_inside: Inside) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        insider.run(fail)
    assert insider.run(lambda _inside: 7) == 7


@pytest.mark.root
def test_a_thread_that_is_inside_a_pod_does_no_work_for_the_process(insider: Insider) -> None:
    resident = Resident()
    for work in (lambda _inside: resident.run(where), lambda _inside: Resident()):
        with pytest.raises(KernelError) as caught:
            insider.run(work)
        assert caught.value.errno == errno.ESTALE
    assert resident.run(where) == where()
    resident.end()


def test_a_descriptor_of_no_namespace_fails_every_call_and_ends_the_thread(file: int) -> None:
    insider = Insider()
    insider.enter(file)
    for use in (lambda: insider.cookie, lambda: insider.run(where), lambda: insider.lend(names)):
        with pytest.raises(KernelError, match="enter the network namespace: EINVAL") as caught:
            use()
        assert caught.value.errno == errno.EINVAL
    insider.join()  # without an end


def test_a_resident_works_in_the_callers_thread() -> None:
    resident = Resident()
    assert resident.run(lambda _inside: threading.get_ident()) == threading.get_ident()
    assert resident.run(where) == where()
    assert "lo" in resident.lend(names)
    with RouteSocket() as route:
        assert resident.cookie == route.cookie()
    resident.end()
    resident.join()


def test_a_residents_socket_in_doubt_is_replaced() -> None:
    resident = Resident()
    resident.run(lambda inside: inside.route.close())
    with pytest.raises(KernelError):
        resident.lend(names)
    assert "lo" in resident.lend(names)
    resident.end()


def test_a_thread_is_ready_once_there_was_a_refill(file: int) -> None:
    spare, before = Spare(), len(spares())
    spare.refill()
    spare.refill()
    assert len(spares()) == before + 1
    (ready,) = spares()[before:]
    insider = spare.enter(file)
    assert ready.name == "netns"
    assert len(spares()) == before
    with pytest.raises(KernelError):
        insider.run(where)
    ready.join(5)
    assert not ready.is_alive()


def test_without_a_ready_thread_one_is_started(file: int) -> None:
    with pytest.raises(KernelError):
        Spare().enter(file).run(where)


def test_a_ready_thread_that_nobody_needs_ends() -> None:
    spare, before = Spare(), spares()
    spare.refill()
    spare.dismiss()
    assert spares() == before
    spare.dismiss()  # again is nothing


def test_the_processes_own_namespace_is_known(own: int, file: int) -> None:
    assert is_own(own)
    assert not is_own(file)


@pytest.mark.root
def test_a_pods_namespace_is_not_the_processes_own(linux: LinuxMachine) -> None:
    with open(linux.pod_path) as pod:  # noqa: PTH123 - its descriptor is wanted
        assert not is_own(pod.fileno())
