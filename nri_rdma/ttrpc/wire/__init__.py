"""The ttrpc protocol: bytes to calls and streams, and back.

One connection object per direction of a byte stream, h11-like: receive_data() buffers, next_event() parses, the
methods that send return bytes to write. Mistakes of the peer cost the peer one stream, never the connection; the
answers are those of the Go server. What each frame does to its stream is a table (`states`), and every frame that is
sent or received goes through one door that asks it. Reading, writing, time-outs and what a method means are left to
the callers, and so is a bound on the calls that are open: a connection keeps the number of a stream and its state.
"""

from .client import ClientConnection
from .error import ProtocolError
from .events import Data, End, Rejected, Request, Response
from .frames import MESSAGE_MAX, OversizedMessage
from .messages import Code
from .server import ServerConnection

__all__ = [
    "MESSAGE_MAX",
    "ClientConnection",
    "Code",
    "Data",
    "End",
    "OversizedMessage",
    "ProtocolError",
    "Rejected",
    "Request",
    "Response",
    "ServerConnection",
]
