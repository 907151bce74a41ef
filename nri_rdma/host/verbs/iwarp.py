"""Connects a device to itself on iWARP, where only the connection manager (rdma_cm) can make a connection."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from typing import Any  # Any: pyverbs has no types

from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.memory import Halves, wait_for
from nri_rdma.host.verbs.steps import StepError, Steps

_RESOLVE_MS = 2000
_DEPTH = 16
_MOST_BYTES = 1 << 20
"""The largest size of one message in bytes."""
_EVENTS = {
    1: "the address cannot be resolved",
    3: "there is no route",
    6: "the connection cannot be made",
    7: "the other end is unreachable",
    8: "the connection is rejected",
}
"""The error texts for events of the connection manager that report a failure, by rdma_cm_event_type."""


def prove(task: Mapping[str, Any], steps: Steps, answer: dict[str, Any]) -> None:
    """Test an iWARP device: register memory, connect the device to itself, and move data. Writes the numbers of
    registered and moved bytes into `answer`. Raises StepError for the first step that fails."""
    with ExitStack() as opened:
        with steps.step("connect"):
            address, tcp_port, listener = _listener(task, opened)
            caller = _End(opened)
            way = _address(address, tcp_port, is_own=False)
            caller.id.resolve_addr(way, _RESOLVE_MS)
            caller.wait(numbers.ADDR_RESOLVED)
            caller.id.resolve_route(_RESOLVE_MS)
            caller.wait(numbers.ROUTE_RESOLVED)
        with steps.step("register"):
            memory = Halves(caller.id.pd, task["memory_bytes"])
            opened.callback(memory.region.close)
            answer["registered_bytes"] = memory.length
        with steps.step("qp"):
            queue = library.part("cq").CQ(caller.id.context, 2 * _DEPTH)
            opened.callback(queue.close)
            calling = _pair(caller.id, queue, opened)
        with steps.step("connect"):
            caller.id.connect(library.part("cmid").ConnParam(qp_num=calling.qp_num))
            called = listener.accept(queue, opened)
            caller.wait(numbers.ESTABLISHED)
        with steps.step("transfer"):
            send = partial(_send, calling, called, queue, memory)
            answer["transferred_bytes"] = memory.move(task, _MOST_BYTES, send)


class _End:
    """One end of a connection that rdma_cm makes, with its own channel for events of the connection manager."""

    def __init__(self, opened: ExitStack) -> None:
        cmid = library.part("cmid")
        self.events = cmid.CMEventChannel()
        opened.callback(self.events.close)
        self.id = cmid.CMID(creator=self.events, port_space=numbers.PS_TCP)
        opened.callback(self.id.close)

    def wait(self, wanted: int) -> None:
        """Wait for the next event of the connection manager. Raises StepError if it is not the event `wanted`."""
        self._next(wanted).close()

    def accept(self, queue: Any, opened: ExitStack) -> Any:
        """Accept the next connection request. Return the queue pair of the new connection, whose completions go to the
        completion queue `queue`."""
        cmid = library.part("cmid")
        request = self._next(numbers.CONNECT_REQUEST)
        accepted = cmid.CMID(creator=request, listen_id=self.id)
        request.close()
        opened.callback(accepted.close)
        pair = _pair(accepted, queue, opened)
        accepted.accept(cmid.ConnParam(qp_num=pair.qp_num))
        self.wait(numbers.ESTABLISHED)
        return pair

    def _next(self, wanted: int) -> Any:
        event = library.part("cmid").CMEvent(self.events)
        if event.event_type != wanted:
            words = _EVENTS.get(event.event_type, f"event {event.event_type}")
            event.close()
            raise StepError("connect", f"rdma_cm says: {words}")
        return event


def _listener(task: Mapping[str, Any], opened: ExitStack) -> tuple[str, str, _End]:
    """Return an IP address of the device, a free TCP port, and an end that listens at both. Raises StepError if no
    address of the pod is on the device."""
    for address in _addresses(task):
        tcp_port = _free_port(address)
        end = _End(opened)
        try:
            end.id.bind_addr(_address(address, tcp_port, is_own=True))
        except Exception as error:
            if library.errno_of(error) == errno.ENODEV:  # the address is on a netdev without RDMA
                continue
            raise
        if end.id.dev_name == task["device"]:
            end.id.listen(1)
            return address, tcp_port, end
    told = ", ".join(task.get("addresses", ())) or "none is known"
    raise StepError("connect", f"no address of the pod is on {task['device']} (addresses: {told})")


def _addresses(task: Mapping[str, Any]) -> Iterator[str]:
    found: Sequence[str] = task.get("addresses", ())
    return (it for it in found if not ip_address(it).is_loopback and not ip_address(it).is_link_local)


def _free_port(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as asking:
        asking.bind((address, 0))
        return str(asking.getsockname()[1])


def _address(address: str, tcp_port: str, *, is_own: bool) -> Any:
    info = library.part("cmid").AddrInfo
    if is_own:
        return info(src=address, src_service=tcp_port, port_space=numbers.PS_TCP, flags=numbers.PASSIVE)
    return info(dst=address, dst_service=tcp_port, port_space=numbers.PS_TCP)


def _pair(end: Any, queue: Any, opened: ExitStack) -> Any:
    """Return a queue pair for a connection that rdma_cm makes. Its completions go to the completion queue `queue`."""
    qp = library.part("qp")
    room = qp.QPCap(max_send_wr=_DEPTH, max_recv_wr=_DEPTH)
    pair = qp.QP(end.pd, qp.QPInitAttr(qp_type=numbers.RC, scq=queue, rcq=queue, cap=room))
    opened.callback(pair.close)
    pair.modify(*end.init_qp_attr(numbers.INIT))
    return pair


def _send(calling: Any, called: Any, queue: Any, memory: Halves, length: int) -> None:
    """Send one message and wait until it has arrived. An RDMA write is not used, because its completion would only
    report that the data was sent."""
    wr = library.part("wr")
    called.post_recv(wr.RecvWR(num_sge=1, sg=[memory.target(length)]))
    sending = {"opcode": numbers.SEND, "send_flags": numbers.SIGNALED}
    calling.post_send(wr.SendWR(num_sge=1, sg=[memory.source(length)], **sending))
    wait_for(queue, 2)
