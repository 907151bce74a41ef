"""The ttrpc protocol without I/O: turns bytes into calls and streams, and back.

There is one connection object for each end of a byte stream, in the style of h11: receive_data() buffers, next_event()
parses, and the methods for sending return bytes to write. A mistake of the peer ends one stream, never the connection;
the peer gets the error text of the Go server. A table (`states`) says how each frame changes the state of its stream,
and every sent or received frame is checked against it.

The caller does the reading and writing, timeouts and the calling of methods. It also has to bound the number of open
calls, because a connection only stores the id and the state of each stream.
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
