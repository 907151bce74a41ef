"""Stubs and handlers made of a descriptor: every kind of method, and what does not decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from nri_rdma.ttrpc import Call, Client, Code, RpcError, Server, Streaming
from nri_rdma.ttrpc.typed import Stub, handlers, stub
from tests.unit.ttrpc.described import describe, number, text
from tests.unit.ttrpc.peers import SOON_S

SERVICE = describe("Typed")


class Implementation:
    """Of every method but Missing."""

    def Say(self, request: StringValue, call: Call) -> StringValue:  # noqa: N802 - the service's names
        return StringValue(value=f"{request.value} to {call.full_method} {call.values('who')}")

    def Count(self, request: Int64Value, call: Call) -> Iterator[Int64Value]:  # noqa: N802
        for n in range(request.value):
            yield Int64Value(value=n)

    def Sum(self, requests: Iterable[Int64Value], call: Call) -> Int64Value:  # noqa: N802
        return Int64Value(value=sum(request.value for request in requests))

    def Talk(self, requests: Iterable[StringValue], call: Call) -> Iterator[StringValue]:  # noqa: N802
        for request in requests:
            if request.value == "stop":
                raise RpcError(Code.OUT_OF_RANGE, "stopped")
            yield StringValue(value=request.value * 2)

    def Broken(self, request: Int64Value, call: Call) -> Int64Value | None:  # noqa: N802
        return None


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Server(handlers(SERVICE, Implementation())) as server:
        server.serve_unix(tmp_path / "t.sock")
        with Client(tmp_path / "t.sock") as client:
            yield client


@pytest.fixture
def service(client: Client) -> Stub:
    return stub(client, SERVICE)


def test_a_unary_call(service: Stub) -> None:
    reply = service.Say(text("hi"), timeout_s=SOON_S, metadata=[("Who", "me")])
    assert reply.value == "hi to /test.Typed/Say ('me',)"


@pytest.mark.parametrize("count", [0, 1, 20])
def test_many_replies(service: Stub, count: int) -> None:
    """Of 0, which is a request without bytes, too."""
    with service.Count(number(count), timeout_s=SOON_S) as stream:
        assert [reply.value for reply in stream] == list(range(count))


def test_many_requests(service: Stub) -> None:
    with service.Sum(timeout_s=SOON_S) as stream:
        for n in range(-3, 10):
            stream.send(number(n))
        assert stream.result().value == sum(range(-3, 10))


def test_messages_both_ways(service: Stub) -> None:
    with service.Talk(timeout_s=SOON_S) as stream:
        for word in ("a", "", "bc"):
            stream.send(text(word))
            assert stream.receive(SOON_S).value == word * 2
        with pytest.raises(TimeoutError):
            stream.receive(0.01)
        stream.close_send()
        assert stream.receive() is None


def test_what_an_implementation_raises_is_the_status(service: Stub) -> None:
    with service.Talk(timeout_s=SOON_S) as stream:
        stream.send(text("stop"))
        with pytest.raises(RpcError, match="OUT_OF_RANGE: stopped"):
            stream.receive()


def test_a_reply_that_is_none(service: Stub) -> None:
    with pytest.raises(RpcError, match="UNKNOWN: ttrpc: marshal called with nil"):
        service.Broken(number(1), timeout_s=SOON_S)


def test_a_method_that_is_not_implemented(service: Stub) -> None:
    with pytest.raises(RpcError, match="UNIMPLEMENTED: method Missing"):
        service.Missing(number(1), timeout_s=SOON_S)


def test_a_method_that_the_service_has_not(service: Stub) -> None:
    with pytest.raises(AttributeError, match=r"service test\.Typed has no method Nope"):
        service.Nope(timeout_s=1)


def test_a_stub_lists_the_methods_of_its_service(service: Stub) -> None:
    assert {"Say", "Count", "Sum", "Talk", "Broken", "Missing"} <= set(dir(service))


@pytest.mark.parametrize(
    ("method", "request_", "refusal"),
    [
        ("Say", number(1), "/test.Typed/Say takes google.protobuf.StringValue, not google.protobuf.Int64Value"),
        ("Count", text("1"), "/test.Typed/Count takes google.protobuf.Int64Value, not google.protobuf.StringValue"),
        ("Say", b"\x0a\x02hi", "/test.Typed/Say takes google.protobuf.StringValue, not bytes"),
        ("Count", None, "/test.Typed/Count takes google.protobuf.Int64Value, not NoneType"),
    ],
)
def test_a_request_of_another_type_is_refused_with_both_names(
    service: Stub, method: str, request_: object, refusal: str
) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(service, method)(request_, timeout_s=SOON_S)
    assert str(caught.value) == refusal


def test_a_message_of_another_type_is_refused_and_its_stream_goes_on(service: Stub) -> None:
    with service.Sum(timeout_s=SOON_S) as stream:
        stream.send(number(2))
        with pytest.raises(TypeError) as caught:
            stream.send(text("3"))
        assert str(caught.value) == (
            "/test.Typed/Sum takes google.protobuf.Int64Value, not google.protobuf.StringValue"
        )
        stream.send(number(4))
        assert stream.result().value == 6


@pytest.mark.parametrize(("method", "asked"), [("Say", text("x")), ("Count", number(1))])
def test_a_reply_of_another_type_is_refused_with_both_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, asked: StringValue | Int64Value
) -> None:
    class Wrong:
        def Say(self, request: StringValue, call: Call) -> Int64Value:  # noqa: N802
            return number(1)

        def Count(self, request: Int64Value, call: Call) -> Iterator[StringValue]:  # noqa: N802
            yield text("1")

    wanted, given = ("StringValue", "Int64Value") if method == "Say" else ("Int64Value", "StringValue")
    refusal = f"/test.Typed/{method} returns google.protobuf.{wanted}, not google.protobuf.{given}"
    with Server(handlers(SERVICE, Wrong())) as server:
        server.serve_unix(tmp_path / "t.sock")
        with Client(tmp_path / "t.sock") as client, pytest.raises(RpcError) as caught:
            answer = getattr(stub(client, SERVICE), method)(asked, timeout_s=SOON_S)
            list(answer)
    assert str(caught.value) == f"INTERNAL: {refusal}"
    logged = [(record.levelname, record.message, vars(record)["error"]) for record in caplog.records]
    assert logged == [("ERROR", "a handler returned a value of the wrong type", refusal)]


def test_a_message_of_the_same_name_from_another_pool_is_taken(service: Stub) -> None:
    """SERVICE has its own pool, so its StringValue is another class than protobuf's."""
    reply = service.Say(text("hi"), timeout_s=SOON_S)
    assert service.Say(type(reply)(value="hi"), timeout_s=SOON_S) == reply
    assert type(reply) is not StringValue


BROKEN = b"\x0a\xff"


@pytest.mark.parametrize("method", ["Say", "Count", "Sum", "Talk"])
def test_requests_that_do_not_decode_are_internal_errors(client: Client, method: str) -> None:
    made = handlers(SERVICE, Implementation())["test.Typed", method]
    kinds = (made.client_streams, made.server_streams) if isinstance(made, Streaming) else (False, False)
    stream = client.stream(
        "test.Typed", method, BROKEN, client_streams=kinds[0], server_streams=kinds[1], timeout_s=SOON_S
    )
    with pytest.raises(RpcError, match="INTERNAL: ttrpc: error unmarshalling payload: "):
        stream.result()


def test_replies_that_do_not_decode_are_internal_errors_too(tmp_path: Path) -> None:
    with Server({("test.Typed", "Say"): lambda call: BROKEN}) as server:
        server.serve_unix(tmp_path / "t.sock")
        with Client(tmp_path / "t.sock") as client, pytest.raises(RpcError, match="INTERNAL"):
            stub(client, SERVICE).Say(text("x"), timeout_s=SOON_S)
