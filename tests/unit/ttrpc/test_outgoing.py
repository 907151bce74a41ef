"""A call before it is sent, and the interceptors around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from nri_rdma.ttrpc.outgoing import Outgoing, through

R = TypeVar("R")
CALL = Outgoing("s.v1.S", "Get", b"x", None, ())


class Adds:
    """An interceptor that adds a letter to the payload."""

    def __init__(self, letter: bytes) -> None:
        self.letter = letter

    def __call__(self, call: Outgoing, proceed: Callable[[Outgoing], R], /) -> R:
        return proceed(replace(call, payload=call.payload + self.letter))


def test_the_method_is_written_as_grpc_writes_it() -> None:
    assert CALL.full_method == "/s.v1.S/Get"


def test_a_call_passes_the_first_interceptor_first() -> None:
    assert through([Adds(b"a"), Adds(b"b")], CALL, lambda call: call.payload) == b"xab"
    assert through([], CALL, lambda call: call.payload) == b"x"
