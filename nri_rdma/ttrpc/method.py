"""One method of a protobuf service: its kind, and the encoding of its messages."""

from __future__ import annotations

import logging

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message

from .error import NIL_ANSWER, RpcError
from .wire import Code

log = logging.getLogger(__name__)


class Method:
    """Encodes and decodes the messages of one method, and refuses messages of another type.

    Types are compared by full name, because each descriptor pool has its own classes.
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
        """Return whether client and server send exactly one message each."""
        return not self.client_streams and not self.server_streams

    def encode_request(self, request: Message | None) -> bytes:
        """Return the request as bytes. Raises TypeError for a message of another type; its text names both types."""
        return self._encode(request, "takes", self._input)

    def decode_request(self, payload: bytes) -> Message:
        """Return the request. Raises RpcError with INTERNAL if the bytes cannot be decoded."""
        return _decode(self._input, payload)

    def encode_reply(self, reply: Message | None) -> bytes:
        """Return a handler's result as bytes.

        Raises RpcError with UNKNOWN for None, like the Go server. Raises RpcError with INTERNAL for a value of another
        type, and logs the types.
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
        """Return the reply. Raises RpcError with INTERNAL if the bytes cannot be decoded."""
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
