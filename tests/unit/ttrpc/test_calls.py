"""A handler's call, and the methods of a server."""

from __future__ import annotations

import pytest

from nri_rdma.ttrpc import Call, Code, RpcError
from nri_rdma.ttrpc.calls import Handler, Methods

CALL = Call("s.S", "Get", b"x", (("trace", "1"), ("other", "2"), ("trace", "3")), None)


def test_values_of_a_key_come_in_the_order_sent_whatever_its_case() -> None:
    assert CALL.values("TRACE") == ("1", "3")
    assert CALL.values("none") == ()


@pytest.mark.parametrize(("service", "method", "text"), [("s.S", "Put", "method Put"), ("t.T", "Get", "service t.T")])
def test_a_missing_method_and_a_missing_service_are_told_apart(service: str, method: str, text: str) -> None:
    methods = Methods[Handler, bytes]({("s.S", "Get"): lambda call: call.payload}, [])
    with pytest.raises(RpcError) as caught:
        methods.find(service, method)
    assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, text)


def test_a_handler_runs_inside_the_interceptors() -> None:
    methods = Methods[Handler, bytes]({}, [lambda call, proceed: proceed(call) + b"a", lambda call, proceed: b"b"])
    assert methods.run(CALL, lambda call: b"the handler") == b"ba"
    assert Methods[Handler, bytes]({}, []).run(CALL, lambda call: call.payload) == b"x"
