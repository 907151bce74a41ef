"""When a stream's inbox is full, and the order in which its messages are taken."""

from __future__ import annotations

from nri_rdma.ttrpc.inbox import FULL, OVERHEAD, Inbox


def test_messages_are_taken_in_the_order_in_which_they_came() -> None:
    inbox = Inbox()
    for payload in (b"a", b"", b"b"):
        inbox.put(payload)
    assert len(inbox) == 3
    assert [inbox.take() for _ in range(4)] == [b"a", b"", b"b", None]


def test_a_message_costs_its_bytes_and_its_overhead() -> None:
    inbox = Inbox()
    inbox.put(bytes(FULL - OVERHEAD - 1))
    assert not inbox.is_full
    inbox.put(b"")
    assert inbox.is_full


def test_what_is_taken_makes_room() -> None:
    inbox = Inbox()
    for _ in range(FULL // OVERHEAD):
        inbox.put(b"")
    assert inbox.is_full
    inbox.take()
    assert not inbox.is_full
