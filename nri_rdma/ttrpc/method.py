"""One rpc of a service's descriptor: its kind, and its messages as bytes and back."""

from __future__ import annotations

import logging

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from .error import NIL_ANSWER, RpcError
from .wire import Code

log = logging.getLogger(__name__)


class Method:
    """Encodes and decodes the messages of one rpc, and refuses those of another type.

    Types are compared by their full names, because each descriptor pool has classes of its own.
    """

    def __init__(self, descriptor: MethodDescriptor) -> None:
        self.name: str = descriptor.name
        self.service: str = descriptor.containing_service.full_name
        self.client_streams: bool = descriptor.client_streaming
        self.server_streams: bool = descriptor.server_streaming
        self._input: Descriptor = descriptor.input_type
        self._output: Descriptor = descriptor.output_type

    @property
    def is_unary(self) -> bool:
        """Return whether one message goes and one comes."""
        return not self.client_streams and not self.server_streams

    def encode_request(self, request: Message | None) -> bytes:
        """Return the request's bytes. Raises TypeError, with both names, for a message of another type."""
        return self._encode(request, "takes", self._input)

    def decode_request(self, payload: bytes) -> Message:
        """Return the request. Raises RpcError with INTERNAL for bytes that do not decode."""
        return _decode(self._input, payload)

    def encode_reply(self, reply: Message | None) -> bytes:
        """Return the bytes of what a handler returned or yielded.

        Raises RpcError: UNKNOWN for None, as Go answers; INTERNAL, after one log line, for a value of another type.
        """
        if reply is None:
            raise RpcError(Code.UNKNOWN, NIL_ANSWER)
        try:
            return self._encode(reply, "returns", self._output)
        except TypeError as exc:
            log.error(  # noqa: TRY400 - without a traceback: the text says what is wrong
                "a handler returned a value of the wrong type", extra={"error": str(exc)}
            )
            raise RpcError(Code.INTERNAL, str(exc)) from exc

    def decode_reply(self, payload: bytes) -> Message:
        """Return the reply. Raises RpcError with INTERNAL for bytes that do not decode."""
        return _decode(self._output, payload)

    def _encode(self, message: Message | None, verb: str, expected: Descriptor) -> bytes:
        if isinstance(message, Message) and message.DESCRIPTOR.full_name == expected.full_name:
            return message.SerializeToString()
        found = message.DESCRIPTOR.full_name if isinstance(message, Message) else type(message).__name__
        raise TypeError(f"/{self.service}/{self.name} {verb} {expected.full_name}, not {found}")


def _decode(kind: Descriptor, payload: bytes) -> Message:
    try:
        return message_factory.GetMessageClass(kind).FromString(payload)
    except DecodeError as exc:
        raise RpcError(Code.INTERNAL, f"ttrpc: error unmarshalling payload: {exc}") from exc
