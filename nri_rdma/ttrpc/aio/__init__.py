"""ttrpc for Python: a client and a server for asyncio."""

from .calls import AsyncHandler, AsyncInterceptor, AsyncStream, AsyncStreamHandler, AsyncStreaming
from .client import AsyncClient, AsyncClientInterceptor
from .clientstream import AsyncClientStream
from .server import AsyncServer

__all__ = [
    "AsyncClient",
    "AsyncClientInterceptor",
    "AsyncClientStream",
    "AsyncHandler",
    "AsyncInterceptor",
    "AsyncServer",
    "AsyncStream",
    "AsyncStreamHandler",
    "AsyncStreaming",
]
