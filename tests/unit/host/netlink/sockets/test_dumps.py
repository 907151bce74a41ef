"""Lists of any protocol: whole or an error, never a part that passes for the whole."""

import errno
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.dumps import ATTEMPTS, DUMP_INTERRUPTED, Ask, asking, messages_of, read_whole
from tests.unit.host.netlink.made_messages import DONE, error, message

GETLINK = 18


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.binary(max_size=21)), max_size=6))
def test_every_message_of_a_datagram_is_read_whole(made: list[tuple[int, int, bytes]]) -> None:
    every = [(kind, flags, message(kind, body, flags)) for kind, flags, body in made]
    datagram = b"".join(whole + bytes(-len(whole) % 4) for _, _, whole in every)
    assert list(messages_of(datagram)) == every


@pytest.mark.parametrize("length", [0, 15, 21, 0xFFFFFFFF])
def test_a_message_of_an_impossible_length_is_an_error(length: int) -> None:
    broken = struct.pack("=IHHII", length, 16, 2, 1, 0) + b"body"
    with pytest.raises(KernelError, match=f"a message claims {length} bytes"):
        list(messages_of(DONE + broken))


def test_a_list_that_changed_is_read_again() -> None:
    answers = [(["half"], True), (["half", "of it"], True), (["all"], False), (["never read"], False)]
    assert read_whole("list things", lambda: answers.pop(0)) == ["all"]
    assert answers == [(["never read"], False)]


def test_a_list_that_changes_at_every_attempt_is_an_error() -> None:
    attempts = []

    def read() -> tuple[list[str], bool]:
        attempts.append(1)
        return ["a part"], True

    with pytest.raises(KernelError, match=r"list things: EAGAIN .the list changed 10 times") as caught:
        read_whole("list things", read)
    assert (caught.value.errno, len(attempts)) == (errno.EAGAIN, ATTEMPTS)


class Kernel:
    """The other end of the socket that is asked: has the answers of one request after the other, in datagrams."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.ask: Ask

    def will_answer(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self._end.send(datagram)

    def was_asked(self) -> bytes:
        return self._end.recv(1000)


class _Unbound(socket.socket):
    """A socket that has no number of netlink's."""

    def bind(self, _address: object) -> None:
        """It hears what its other end sends."""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    one, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours = _Unbound(fileno=one.detach())
    monkeypatch.setattr(socket, "socket", lambda *_arguments: ours)
    with theirs, asking(socket.NETLINK_ROUTE) as ask:
        monkeypatch.undo()
        made = Kernel(theirs)
        made.ask = ask
        yield made


def test_a_list_is_asked_for_and_comes_from_all_datagrams(kernel: Kernel) -> None:
    one, two, three = (message(16, bytes([number]) * 4) for number in (1, 2, 3))
    kernel.will_answer(one + two, three, DONE)
    assert kernel.ask(GETLINK, b"body") == [one, two, three]
    # nlmsg_len, nlmsg_type, NLM_F_REQUEST | NLM_F_DUMP, and the body
    assert kernel.was_asked() == struct.pack("=IHHII", 20, GETLINK, 0x301, 1, 0) + b"body"


def test_a_list_that_the_kernel_marks_as_interrupted_is_asked_for_again(kernel: Kernel) -> None:
    half, whole = message(16, b"half", 2 | DUMP_INTERRUPTED), message(16, b"all.")
    kernel.will_answer(half, DONE, whole + DONE)
    assert kernel.ask(GETLINK, b"") == [whole]


def test_the_mark_counts_also_at_the_end_of_the_list(kernel: Kernel) -> None:
    ended = message(3, bytes(4), 2 | DUMP_INTERRUPTED)
    kernel.will_answer(message(16, b"half") + ended, message(16, b"all.") + DONE)
    assert kernel.ask(GETLINK, b"") == [message(16, b"all.")]


def test_a_refusal_is_an_error(kernel: Kernel) -> None:
    kernel.will_answer(error(errno.EPERM))
    with pytest.raises(KernelError, match="ask netlink for 18: EPERM") as caught:
        kernel.ask(GETLINK, b"")
    assert caught.value.errno == errno.EPERM


def test_an_error_at_the_end_of_a_list_is_no_list(kernel: Kernel) -> None:
    kernel.will_answer(message(16, b"part") + message(3, struct.pack("=i", -errno.ENOMEM)))
    with pytest.raises(KernelError) as caught:
        kernel.ask(GETLINK, b"")
    assert caught.value.errno == errno.ENOMEM


def test_this_kernel_lists_its_links() -> None:
    with asking(socket.NETLINK_ROUTE) as ask:
        found = ask(GETLINK, bytes(16))
        again = ask(GETLINK, bytes(16))
    numbers = {struct.unpack_from("=i", it, 20)[0] for it in found}
    assert numbers == {number for number, _ in socket.if_nameindex()}
    assert len(again) == len(found)


def test_this_kernel_refuses_a_list_that_it_does_not_have() -> None:
    with asking(socket.NETLINK_ROUTE) as ask, pytest.raises(KernelError) as caught:
        ask(0xFFF0, bytes(16))
    assert caught.value.errno == errno.EOPNOTSUPP
