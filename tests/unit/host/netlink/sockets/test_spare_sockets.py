"""Sockets that are kept for the next call, of the namespace that they were opened in, and closed with it."""

import errno
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.routes import routes
from nri_rdma.host.netlink.sockets import patience
from nri_rdma.host.netlink.sockets.spare_sockets import SpareSockets, give_back, momentary, take_socket, using
from tests.contract.machines import LinuxMachine
from tests.rig.descriptors import open_descriptors

ROUTE, GENERIC = 0, 16  # NETLINK_*, include/uapi/linux/netlink.h
COOKIE = 71  # SO_NETNS_COOKIE, include/uapi/asm-generic/socket.h


@pytest.fixture
def spare() -> Iterator[SpareSockets]:
    made = SpareSockets(are_kept=True)
    yield made
    made.close()


def is_open(asked: socket.socket) -> bool:
    return asked.fileno() >= 0


def test_a_socket_serves_the_next_call_of_its_protocol(spare: SpareSockets) -> None:
    with using(spare):
        with momentary(ROUTE) as first:
            pass
        with momentary(GENERIC) as other, momentary(ROUTE) as again, momentary(ROUTE) as second:
            assert again is first
            assert len({id(it) for it in (first, other, second)}) == 3
        assert spare.count == 3


def test_a_socket_waits_for_an_answer_for_a_limited_time_and_has_a_number(spare: SpareSockets) -> None:
    with using(spare), momentary(ROUTE) as asked:
        timeval = struct.unpack("@ll", asked.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
        assert timeval == (5, 0)
        assert asked.getsockname()[0] != 0


def test_after_an_error_a_socket_is_closed(spare: SpareSockets) -> None:
    with using(spare):
        with pytest.raises(ZeroDivisionError), momentary(ROUTE) as asked:
            raise ZeroDivisionError
        assert not is_open(asked)
        assert spare.count == 0


def test_few_are_kept(spare: SpareSockets) -> None:
    with using(spare):
        every = [take_socket(ROUTE) for _ in range(7)]
        for it in every:
            give_back(ROUTE, it)
    assert spare.count == 4
    assert sum(map(is_open, every)) == 4


def test_where_they_are_kept_for_a_while_they_are_closed_with_its_end() -> None:
    spare = SpareSockets(are_kept=False)
    with using(spare):
        with momentary(ROUTE) as first:
            pass
        assert not is_open(first)
        with spare.keeping():
            with spare.keeping(), momentary(ROUTE) as second:
                pass
            assert is_open(second)
            with momentary(ROUTE) as again:
                assert again is second
        assert not is_open(second)


def test_an_answer_that_does_not_come_is_told_and_its_socket_closed(
    spare: SpareSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_TIMEVAL", struct.pack("@ll", 0, 1000))
    with using(spare):
        with pytest.raises(KernelError, match="no answer in 5 s") as caught, momentary(ROUTE) as asked:
            asked.recv(100)
        assert caught.value.errno == errno.ETIMEDOUT
        assert not is_open(asked)
        assert spare.count == 0


@pytest.mark.root
def test_a_socket_that_heard_news_is_given_back_without_any_and_hears_no_more(linux: LinuxMachine) -> None:
    linux.add_link("up0", "02:11:00:00:00:02")
    linux.set("up0", up=True)
    host = linux.kernel.host
    assert isinstance(host, HeldNamespace)

    def heard() -> tuple[bool, bool]:
        with momentary(ROUTE) as news:
            with routes._hearing(news) as has_heard:
                linux.add_route("up0", "fd00:77::/64")
                linux.add_route("up0", "fd00:78::/64")
                during = has_heard()
            linux.add_route("up0", "fd00:79::/64")
            try:
                return during, bool(news.recv(1, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return during, False

    assert host.run(heard) == (True, False)


def test_what_comes_back_after_the_end_is_closed(spare: SpareSockets) -> None:
    with using(spare):
        asked, kept = take_socket(ROUTE), take_socket(ROUTE)
        give_back(ROUTE, kept)
        spare.close()
        assert not is_open(kept)
        give_back(ROUTE, asked)
    assert not is_open(asked)
    assert spare.count == 0


def test_who_uses_no_spare_ones_opens_and_closes() -> None:
    with momentary(ROUTE) as asked:
        assert is_open(asked)
    assert not is_open(asked)


def test_each_thread_uses_those_of_its_own_place(spare: SpareSockets) -> None:
    other = SpareSockets(are_kept=True)

    def elsewhere() -> None:
        with using(other), momentary(ROUTE):
            assert spare.count == 1

    with using(spare), momentary(ROUTE):
        pass
    with using(spare), ThreadPoolExecutor(1) as thread:
        thread.submit(elsewhere).result(30)
    assert (spare.count, other.count) == (1, 1)
    other.close()


@pytest.mark.root
def test_a_namespace_keeps_its_own_until_it_rests(linux: LinuxMachine) -> None:
    earlier = open_descriptors()
    host, pod = linux.kernel.host, linux.kernel.open_namespace(linux.pod_path)
    assert isinstance(host, HeldNamespace)
    assert isinstance(pod, HeldNamespace)

    def asked() -> tuple[int, int]:
        """Return the number of the socket's namespace, and that of its descriptor."""
        with momentary(ROUTE) as it:
            return struct.unpack("=Q", it.getsockopt(socket.SOL_SOCKET, COOKIE, 8))[0], it.fileno()

    with host.keeping():
        of_pod, of_host = pod.run(asked), host.run(asked)
        assert (of_pod[0], of_host[0]) == (pod.identity.cookie, host.identity.cookie)
        assert (pod.run(asked), host.run(asked)) == (of_pod, of_host)
        assert host.sockets == 2
    assert host.sockets == 1
    before = open_descriptors() - earlier
    pod.rest()
    assert len(before - open_descriptors()) == 2, "it, and the namespace's own"
    assert pod.run(asked)[0] == of_pod[0]
    pod.close()
