"""The kernel's uevents about netdevs and RDMA devices, read without the product.

Every event has a number (SEQNUM) that the kernel counts over all subsystems and namespaces: the order of the numbers is
the order of the changes. Netdevs and RDMA devices are announced in the namespace that they leave or enter, the
character devices of RDMA devices everywhere.
"""

import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NETLINK_KOBJECT_UEVENT, _KERNEL_GROUP = 15, 1  # include/uapi/linux/netlink.h; group 2 is udev's
_SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
_BUFFER_BYTES = 4 << 20
_SUBSYSTEMS = frozenset({"net", "infiniband", "infiniband_verbs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: `remove`, class `net`, name `eth0`."""

    number: int
    action: str
    subsystem: str
    name: str

    def __str__(self) -> str:
        return f"{self.action} {self.subsystem} {self.name}"


class Uevents:
    """Collect the events of the host's namespace between __enter__ and __exit__."""

    def __enter__(self) -> Self:
        self._events: list[Event] = []
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT
        )
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.setblocking(False)
        self._socket.bind((0, _KERNEL_GROUP))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def so_far(self) -> list[Event]:
        """Return all events until now, in the kernel's order. OSError: some were lost."""
        while True:
            try:
                datagram = self._socket.recv(1 << 13)
            except BlockingIOError:
                return sorted(self._events, key=lambda event: event.number)
            head, *pairs = datagram.decode(errors="replace").split("\0")
            told = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if told.get("SUBSYSTEM") in _SUBSYSTEMS:
                action, _, path = head.partition("@")
                name = path.rpartition("/")[2]
                event = Event(number=int(told["SEQNUM"]), action=action, subsystem=told["SUBSYSTEM"], name=name)
                self._events.append(event)
