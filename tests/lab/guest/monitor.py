"""Events of RDMA devices, as `rdma monitor` shows them: what the kernel tells of a device, and what it does not.

Devices made, renamed and gone are told, and their netdevs; a device that changes its namespace is not: the kernel sends
a uevent then and nothing here. Kernels before 6.12 send nothing at all (RdmaSystem.monitor).
"""

import socket

from nri_rdma.attach.port import KernelError
from nri_rdma.model.nldev import RdmaEvent
from nri_rdma.wire import nldev

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1  # include/linux/socket.h, include/uapi/linux/netlink.h


class RdmaMonitor:
    """Events of the devices in the namespace of the thread that made it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, nldev.NETLINK_RDMA)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, nldev.GROUP_NOTIFY)

    def fileno(self) -> int:
        """For os.set_blocking."""
        return self._socket.fileno()

    def read(self) -> tuple[RdmaEvent, ...]:
        """The next events; blocks until there are some."""
        try:
            return nldev.read_events(self._socket.recv(1 << 16))
        except OSError as error:
            raise KernelError("read RDMA events", error.errno or 0, error.strerror or "") from error

    def close(self) -> None:
        """Stop watching."""
        self._socket.close()
