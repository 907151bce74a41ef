"""ttrpc for Python: a blocking client and server. The package `aio` has those for asyncio."""

from .calls import Call, Handler, Interceptor, Stream, StreamHandler, Streaming
from .client import Client
from .clientstream import ClientStream
from .error import ConnectionClosed, RpcError
from .outgoing import ClientInterceptor, Outgoing
from .server import Server
from .wire import Code, ProtocolError

__all__ = [
    "Call",
    "Client",
    "ClientInterceptor",
    "ClientStream",
    "Code",
    "ConnectionClosed",
    "Handler",
    "Interceptor",
    "Outgoing",
    "ProtocolError",
    "RpcError",
    "Server",
    "Stream",
    "StreamHandler",
    "Streaming",
]
