"""ttrpc for Python: a blocking client and server over Unix sockets."""

from nri_rdma.ttrpc.client import Client
from nri_rdma.ttrpc.error import ConnectionClosed, RpcError
from nri_rdma.ttrpc.server import Call, Server
from nri_rdma.wire.ttrpc import Code

__all__ = ["Call", "Client", "Code", "ConnectionClosed", "RpcError", "Server"]
