"""Datagrams of any length come whole, in one call each."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from nri_rdma.host.netlink.sockets import datagrams
from nri_rdma.host.netlink.sockets.datagrams import LONGEST, Datagrams
from nri_rdma.wire import WireError

USERSOCK = 2  # NETLINK_USERSOCK: between processes, also without privileges


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, USERSOCK)
    made.bind((0, 0))
    made.settimeout(5)
    return made


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that sends, and one that receives."""
    with _socket() as sender, _socket() as receiver:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sender.connect(receiver.getsockname())
        yield sender, receiver


@pytest.mark.parametrize("length", [1, 32 << 10, (64 << 10) + 1, 150_000])
def test_a_datagram_comes_whole_and_with_its_sender(ends: tuple[socket.socket, socket.socket], length: int) -> None:
    sender, receiver = ends
    sent = bytes(number % 251 for number in range(length))
    sender.send(sent)
    with closing(Datagrams(receiver)) as source:
        assert source.receive() == (sent, sender.getsockname()[0])


def test_a_short_datagram_has_nothing_of_the_long_one_before_it(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = ends
    with closing(Datagrams(receiver)) as source:
        for sent in (b"x" * 100, b"short"):
            sender.send(sent)
            assert source.receive()[0] == sent


def test_one_that_was_received_stays_as_it_is_when_the_next_comes(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = ends
    with closing(Datagrams(receiver)) as source:
        sender.send(b"first")
        first, _ = source.receive()
        sender.send(b"other")
        source.receive()
    assert first == b"first"


def test_one_that_does_not_fit_is_an_error_and_the_next_comes(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagrams, "LONGEST", 4096)
    sender, receiver = ends
    with closing(Datagrams(receiver)) as source:
        for sent in (b"x" * 4097, b"y" * 4096):
            sender.send(sent)
        with pytest.raises(WireError, match="a datagram of 4097 bytes, more than 4096"):
            source.receive()
        assert source.receive()[0] == b"y" * 4096


def test_the_buffer_is_as_long_as_anything_that_the_kernel_sends() -> None:
    """KMALLOC_MAX_SIZE: 2 ** (MAX_PAGE_ORDER + PAGE_SHIFT), include/linux/slab.h."""
    assert LONGEST == 4096 << 10


def test_nothing_there_is_the_sockets_own_error(ends: tuple[socket.socket, socket.socket]) -> None:
    _, receiver = ends
    receiver.setblocking(False)
    with closing(Datagrams(receiver)) as source, pytest.raises(BlockingIOError):
        source.receive()


def test_closing_twice_does_nothing_and_leaves_the_socket_open(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = ends
    source = Datagrams(receiver)
    source.close()
    source.close()
    sender.send(b"still heard")
    assert receiver.recv(100) == b"still heard"
