"""What two sides tell each other over TCP is bounded in size and time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from nri_rdma.host.verbs.conversation import Conversation, ConversationError, check_hello, hello, number, real, text

Ends = tuple[Conversation, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, two = socket.socketpair()
    with one, two:
        yield Conversation(one, 0.3), two


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (b"GET / HTTP/1.1\n", "invalid JSON"),
        (b"[" * 60000 + b"\n", "invalid JSON: it is nested too deeply"),
        (b"[]\n", "no object"),
        (b'{"error": "as it says"}\n', "the other side says: as it says"),
        (b"x" * 70000, "more than 65536 bytes"),
        (b"{", "timed out"),
    ],
)
def test_what_cannot_be_understood_is_a_sentence(ends: Ends, sent: bytes, what: str) -> None:
    conversation, other = ends
    other.settimeout(1)
    started = time.monotonic()
    other.sendall(sent)
    with pytest.raises(ConversationError, match=what):
        conversation.hear()
    assert time.monotonic() - started < 5


def test_objects_that_come_at_once_or_in_pieces_are_heard_one_by_one(ends: Ends) -> None:
    conversation, other = ends
    other.sendall(b'{"a": 1}\n{"b"')
    assert conversation.hear() == {"a": 1}
    other.sendall(b": 2}\n")
    assert conversation.hear() == {"b": 2}
    other.close()
    with pytest.raises(ConversationError, match="has ended the connection"):
        conversation.hear()


def test_a_side_of_another_version_is_not_understood() -> None:
    check_hello(hello([]))
    with pytest.raises(ConversationError, match="speaks version 2, this one 1: use the same nri-rdma on both"):
        check_hello({**hello([]), "version": 2})
    with pytest.raises(ConversationError, match="is not nri-rdma verify"):
        check_hello({})


@pytest.mark.parametrize("value", [None, "1", True, 1.5, -1, 11])
def test_numbers_are_bounded(value: object) -> None:
    assert number({"n": 10}, "n", 0, 10) == 10
    with pytest.raises(ConversationError):
        number({"n": value}, "n", 0, 10)


@pytest.mark.parametrize(
    "value", [None, "1", True, -1.0, float("nan"), float("inf"), pytest.param(10**400, id="401 digits"), 2e12]
)
def test_measured_numbers_are_numbers(value: object) -> None:
    assert real({"n": 1.5}, "n") == 1.5
    with pytest.raises(ConversationError):
        real({"n": value}, "n")


def test_texts_are_bounded() -> None:
    assert text({"t": "a" * 64}, "t") == "a" * 64
    for told in ({}, {"t": 1}, {"t": "a" * 65}):
        with pytest.raises(ConversationError):
            text(told, "t")
