"""ttrpc for Python: a blocking client and server."""

from nri_rdma.ttrpc.calls import Call, Handler, Interceptor, Stream, StreamHandler, Streaming
from nri_rdma.ttrpc.client import Client
from nri_rdma.ttrpc.clientstream import ClientStream
from nri_rdma.ttrpc.error import ConnectionClosed, RpcError
from nri_rdma.ttrpc.outgoing import ClientInterceptor, Outgoing
from nri_rdma.ttrpc.server import Server
from nri_rdma.ttrpc.wire import Code

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
    "RpcError",
    "Server",
    "Stream",
    "StreamHandler",
    "Streaming",
]
