"""ttrpc for Python: the client and server of asyncio."""

from nri_rdma.ttrpc.aio.calls import AsyncHandler, AsyncInterceptor, AsyncStream, AsyncStreamHandler, AsyncStreaming
from nri_rdma.ttrpc.aio.client import AsyncClient, AsyncClientInterceptor
from nri_rdma.ttrpc.aio.clientstream import AsyncClientStream
from nri_rdma.ttrpc.aio.server import AsyncServer

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
