"""What an event says of the frame that it was."""

from __future__ import annotations

import pytest

from nri_rdma.ttrpc.wire import (
    Request,
    ServerConnection,
)
from tests.unit.ttrpc.wire.framing import (
    CLOSED,
    OPEN,
    request,
)


@pytest.mark.parametrize(
    ("flags", "is_unary", "is_followed"),
    [(0, True, False), (CLOSED, False, False), (OPEN, False, True), (OPEN | CLOSED, False, False), (0x80, True, False)],
)
def test_a_request_says_what_will_follow(flags: int, is_unary: bool, is_followed: bool) -> None:
    server = ServerConnection()
    server.receive_data(request(1, flags))
    event = server.next_event()
    assert isinstance(event, Request)
    assert (event.is_unary, event.is_followed) == (is_unary, is_followed)
