"""A message of ours that would break the protocol is not made, and the connection is as it was."""

from __future__ import annotations

import pytest

from nri_rdma.ttrpc.wire import MESSAGE_MAX, ClientConnection, OversizedMessage
from nri_rdma.ttrpc.wire.error import ProtocolError


def test_a_message_that_is_too_long_is_a_protocol_error() -> None:
    client = ClientConnection()
    with pytest.raises(ProtocolError) as caught:
        client.request("s", "m", bytes(MESSAGE_MAX))
    assert isinstance(caught.value, OversizedMessage)
    assert client.open_streams == 0


def test_the_connection_is_as_it_was_after_a_message_to_a_stream_that_is_not_open() -> None:
    client = ClientConnection()
    with pytest.raises(ProtocolError, match="stream 1"):
        client.send_data(1, b"x")
    with pytest.raises(ProtocolError, match="stream 1"):
        client.close_send(1)
    assert client.request("s", "m", b"")[0] == 1
