"""One rpc's messages as bytes and back; what is refused, with which words."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from nri_rdma.ttrpc import RpcError
from nri_rdma.ttrpc.method import Method
from tests.unit.ttrpc.described import describe, number, text

SERVICE = describe("Method")


def test_the_kind_of_a_method_is_the_descriptors() -> None:
    kinds = {it.name: (Method(it).is_unary, Method(it).client_streams) for it in SERVICE.methods[:4]}
    assert kinds == {"Say": (True, False), "Count": (False, False), "Sum": (False, True), "Talk": (False, True)}


def test_messages_go_and_come_as_protobuf_has_them() -> None:
    say = Method(SERVICE.methods_by_name["Say"])
    assert (say.service, say.name) == ("test.Method", "Say")
    assert say.encode_request(text("hi")) == say.encode_reply(text("hi")) == text("hi").SerializeToString()
    for decoded in (say.decode_request(b"\x0a\x02hi"), say.decode_reply(b"\x0a\x02hi")):
        assert StringValue.FromString(decoded.SerializeToString()).value == "hi"


def test_a_reply_of_none_or_of_another_type_is_a_status_and_a_request_of_another_type_is_a_type_error() -> None:
    say = Method(SERVICE.methods_by_name["Say"])
    with pytest.raises(RpcError, match="UNKNOWN: ttrpc: marshal called with nil"):
        say.encode_reply(None)
    with pytest.raises(RpcError, match=r"INTERNAL: /test\.Method/Say returns google\.protobuf\.StringValue, not "):
        say.encode_reply(number(1))
    with pytest.raises(TypeError, match=r"/test\.Method/Say takes google\.protobuf\.StringValue, not NoneType"):
        say.encode_request(None)
