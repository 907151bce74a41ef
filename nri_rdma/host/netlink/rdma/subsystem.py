"""Queries RDMA devices over netlink (NETLINK_RDMA), moves and renames them: devices, ports, character devices, objects,
and the netns mode (whether namespaces share the RDMA devices).

A socket sees the namespace of the thread that opened it, but the kernel moves a device out of the namespace of the
thread that *sends*. A socket is therefore opened, used and closed while one thread is in one namespace, see visit(). No
socket is kept open, because it would keep the module ib_core from being unloaded.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.sockets.dumps import read_whole
from nri_rdma.host.netlink.sockets.patience import PATIENCE_S, be_patient
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.nldev import (
    CharNumber,
    ObjectKind,
    RdmaDeviceState,
    RdmaNetdevs,
    RdmaObject,
    RdmaPortState,
)
from nri_rdma.wire import WireError, nldev

T = TypeVar("T")

_DATAGRAM_MAX = 1 << 16  # the kernel never sends more: a dump's buffer is at most 32 KiB (net/netlink/af_netlink.c)


def visit(namespace: HeldNamespace, operation: str, work: Callable[[RdmaSocket], T]) -> T:
    """Run `work` in the namespace with an RDMA socket of that namespace, and return its result. Raises KernelError if
    the namespace cannot be entered or the kernel refuses a request."""

    def with_socket() -> T:
        with RdmaSocket() as rdma:
            return work(rdma)

    try:
        return namespace.run(with_socket)
    except OSError as error:
        raise KernelError(operation, error.errno or 0, error.strerror or "") from error


def can_move(home: HeldNamespace, index: int, other: HeldNamespace) -> bool:
    """Return whether the kernel would move an RDMA device from the namespace `home` into the namespace `other`. Changes
    nothing. False if the driver does not support it (no disassociate_ucontext) or the netns mode is shared.

    The request is sent from `other`, where it must fail: the kernel finds the device by the socket's namespace, checks
    driver and mode, and only then finds that the sender's namespace does not have the device, which is ENODEV
    (drivers/infiniband/core/device.c, ib_device_set_netns_put).
    """
    if home.identity.cookie == other.identity.cookie:
        raise KernelError(f"ask whether RDMA device {index} can move", errno.EINVAL, "in one namespace it goes down")
    rdma = home.run(RdmaSocket)
    with rdma, other.descriptor() as fd:
        try:
            other.run(lambda: rdma.move(index, fd))
        except KernelError as error:
            if error.errno == errno.ENODEV:
                return True
            if error.errno == errno.EOPNOTSUPP:
                return False
            raise
    raise KernelError(f"ask whether RDMA device {index} can move", errno.EPROTO, "the kernel moved it")


def read_netdevs(rdma: RdmaSocket) -> tuple[RdmaNetdevs, ...] | None:
    """Return the RDMA devices of the socket's namespace, each with its netdevs in that namespace; None if the kernel
    has no RDMA subsystem.

    A device that is removed between the list of devices and the query of its ports is left out.
    """
    if not rdma.has_subsystem:
        return None
    found = []
    for device in rdma.devices():
        try:
            ports = rdma.ports(device.index)
        except KernelError as error:
            if error.errno == errno.EINVAL and device not in rdma.devices():
                continue
            raise
        found.append(
            RdmaNetdevs(
                index=device.index,
                name=device.name,
                node_guid=device.node_guid,
                ifindexes=tuple(port.netdev_index for port in ports if port.netdev_index is not None),
            )
        )
    return tuple(found)


class RdmaSocket:
    """A socket for queries about the RDMA devices of the namespace in which it was created. Every method raises
    KernelError if the kernel refuses; EINVAL also means that a device is not in the namespace.

    If the kernel has no RDMA subsystem, there are no devices and the netns mode is NONE; other queries fail with
    EPROTONOSUPPORT.
    """

    def __init__(self) -> None:
        self._socket = _open()
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Closing twice does nothing."""
        if self._socket is not None:
            self._socket.close()

    @property
    def has_subsystem(self) -> bool:
        """Return whether the kernel has an RDMA subsystem."""
        return self._socket is not None

    def devices(self) -> tuple[RdmaDeviceState, ...]:
        """Return the RDMA devices of the namespace. In the shared netns mode, these are the devices of the whole
        machine."""
        return self._ask("list RDMA devices", nldev.get_devices()) if self.has_subsystem else ()

    def ports(self, index: int) -> tuple[RdmaPortState, ...]:
        """Return the ports of the RDMA device with this index. Raises KernelError: EINVAL if the namespace does not
        have the device."""
        return self._ask(f"list ports of RDMA device {index}", nldev.get_ports(index))

    def char_device(self, index: int | None, kind: CharKind, port: int | None = None) -> CharNumber | None:
        """Return the number of a character device. `index` is the RDMA device to which it belongs, None for the kind
        rdma_cm, which belongs to none. `port` is needed for the kinds umad and issm.

        None if the RDMA device has no character device of this kind, and always for issm, which the kernel does not
        report (attach/rdma.py).
        """
        what = f"find {kind} of RDMA device {index}"
        try:
            return self._ask_one(what, nldev.get_char_device(kind, index, port))
        except KernelError as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise

    def netns_mode(self) -> RdmaNetns:
        """Return the RDMA subsystem's netns mode: whether namespaces share the RDMA devices."""
        if not self.has_subsystem:
            return RdmaNetns.NONE
        return self._ask_one("read the RDMA netns mode", nldev.get_netns_mode())

    def move(self, index: int, fd: int) -> None:
        """Move an RDMA device into the namespace of the descriptor `fd`. The calling thread must be in the socket's
        namespace. Raises KernelError: EOPNOTSUPP if the driver cannot move the device, or the netns mode is shared."""
        self._ask(f"move RDMA device {index}", nldev.set_namespace(index, fd))

    def rename(self, index: int, name: str) -> None:
        """Rename an RDMA device. Raises KernelError: EEXIST if another device of the machine has that name."""
        self._ask(f"rename RDMA device {index} to {name}", nldev.set_name(index, name))

    def objects(self, index: int, kind: ObjectKind) -> tuple[RdmaObject, ...]:
        """Return the objects of one kind on an RDMA device, each with the process or kernel user that made it."""
        answers = self._ask(f"list the {kind} objects of RDMA device {index}", nldev.get_objects(kind, index))
        return tuple(item for answer in answers for item in answer)

    def kernel_objects(self, index: int, kind: ObjectKind) -> tuple[RdmaObject, ...]:
        """Return the objects of one kind that kernel users hold on an RDMA device. Objects of processes are skipped
        without being decoded."""
        answers = self._ask(f"list the {kind} objects of RDMA device {index}", nldev.get_kernel_objects(kind, index))
        return tuple(item for answer in answers for item in answer)

    def _ask_one(self, operation: str, request: nldev.NldevRequest[T]) -> T:
        answers = self._ask(operation, request)
        if len(answers) != 1:
            raise KernelError(operation, errno.EPROTO, f"{len(answers)} answers")
        return answers[0]

    def _ask(self, operation: str, request: nldev.NldevRequest[T]) -> tuple[T, ...]:
        return tuple(read_whole(operation, lambda: self._ask_once(operation, request)))

    def _ask_once(self, operation: str, request: nldev.NldevRequest[T]) -> tuple[list[T], bool]:
        if self._socket is None:
            raise KernelError(operation, errno.EPROTONOSUPPORT, "the kernel has no RDMA subsystem")
        self._sequence += 1
        replies = nldev.Replies(request, self._sequence)
        try:
            self._socket.send(request.encode(self._sequence))
            while not replies.done:
                replies.receive_data(self._socket.recv(_DATAGRAM_MAX))
        except BlockingIOError as error:
            raise KernelError(operation, errno.ETIMEDOUT, f"no answer in {PATIENCE_S} s") from error
        except OSError as error:
            raise KernelError(operation, error.errno or 0, error.strerror or "") from error
        except WireError as error:
            raise KernelError(operation, errno.EPROTO, str(error)) from error
        if replies.errno:
            raise KernelError(operation, replies.errno)
        return replies.results, replies.is_interrupted


def _open() -> socket.socket | None:
    """Open an RDMA netlink socket in the calling thread's namespace; None if the kernel has no RDMA subsystem. Raises
    KernelError if the kernel refuses the socket."""
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, nldev.NETLINK_RDMA)
    except OSError as error:
        if error.errno == errno.EPROTONOSUPPORT:
            return None
        raise KernelError("open a socket to the RDMA subsystem", error.errno or 0) from error
    try:
        be_patient(opened)
        opened.bind((0, 0))
    except OSError as error:
        opened.close()
        raise KernelError("open a socket to the RDMA subsystem", error.errno or 0) from error
    return opened
