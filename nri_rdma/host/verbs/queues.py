"""Connects a queue pair to itself on InfiniBand and RoCE: a queue pair of type RC, or UD if the device has no RC."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from ipaddress import IPv6Address
from typing import Any  # Any: pyverbs has no types

from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.memory import Halves, wait_for
from nri_rdma.host.verbs.port import SendingPort
from nri_rdma.host.verbs.steps import StepError, Steps

WITHOUT_RC = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""The error numbers with which drivers refuse a queue pair type that they do not support (EFA has no RC)."""
_QKEY = 0x11111111
_GRH_BYTES = 40
"""The size of the global route header, which precedes the data of each received datagram."""
_HOPS = 64
DEPTH = 16
_TIMEOUT, _RETRIES = 14, 7
"""The codes for an acknowledgement timeout of 67 ms (4.096 us * 2^14), and for seven retries."""
_MIN_RNR_TIMER = 12


def prove(context: Any, port: SendingPort, task: Mapping[str, Any], steps: Steps, answer: dict[str, Any]) -> None:
    """Test a device of InfiniBand or RoCE: register memory, connect a queue pair to itself, and move data. Writes the
    numbers of registered and moved bytes into `answer`. Raises StepError for the first step that fails."""
    with steps.step("register"):
        domain = library.part("pd").PD(context)
        memory = Halves(domain, task["memory_bytes"])
        answer["registered_bytes"] = memory.length
    with steps.step("qp"):
        queue = library.part("cq").CQ(context, 2 * DEPTH)
        pair, is_reliable = pair_of(domain, queue)
    with steps.step("connect"):
        if is_reliable:
            connect(pair, port, pair.qp_num, _own_gid(port), port.lid)
        else:
            pair.to_rts(_datagram_attributes(port))
    with steps.step("transfer"):
        if is_reliable:
            most, send, header = port.max_message_bytes, partial(_write, pair, queue, memory), 0
        else:
            handle = library.part("addr").AH(domain, attr=route(port, _own_gid(port), port.lid))
            most, send, header = mtu_bytes(port), partial(_send_datagram, pair, queue, memory, handle), _GRH_BYTES
        answer["transferred_bytes"] = memory.move(task, most, send, header=header)


def pair_of(domain: Any, queue: Any) -> tuple[Any, bool]:
    """Create a queue pair and return it, and True if its type is RC, False if it is UD because the device has no RC.
    `domain` is the protection domain, `queue` the completion queue."""
    try:
        return _make(domain, queue, numbers.RC), True
    except Exception as error:
        if library.errno_of(error) not in WITHOUT_RC:
            raise
        first = error
    try:
        return _make(domain, queue, numbers.UD), False
    except Exception:  # noqa: BLE001 - with no type at all, the error of RC is the relevant one
        raise first from None


def connect(pair: Any, port: SendingPort, peer: int, gid: str, lid: int) -> None:
    """Connect the RC queue pair `pair` to the queue pair with the number `peer` at this GID and LID."""
    attributes = _attributes(port)
    attributes.qp_access_flags = numbers.LOCAL_AND_REMOTE_WRITE
    attributes.path_mtu = port.mtu
    attributes.dest_qp_num = peer
    attributes.ah_attr = route(port, gid, lid)
    attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
    attributes.min_rnr_timer = _MIN_RNR_TIMER
    attributes.timeout = _TIMEOUT
    attributes.retry_cnt = attributes.rnr_retry = _RETRIES
    attributes.rq_psn = attributes.sq_psn = 0
    pair.to_rts(attributes)


def route(port: SendingPort, gid: str, lid: int) -> Any:
    """Return the attributes of an address handle that leads from the port to a GID and LID. Raises StepError if the
    port has no GID of its own."""
    if port.gid is None:
        raise StepError("gid", f"port {port.number} has no GID")
    addr = library.part("addr")
    way = addr.GlobalRoute(dgid=addr.GID(gid), sgid_index=port.gid.index, hop_limit=_HOPS)
    return addr.AHAttr(dlid=lid, is_global=1, port_num=port.number, gr=way)


def mtu_bytes(port: SendingPort) -> int:
    """Return the largest size in bytes of one datagram, from the port's MTU."""
    return 128 << port.mtu


def words_of(gid: IPv6Address) -> str:
    """Return a GID in eight groups of hexadecimal digits, which is the form that pyverbs parses.

    Python's own text is not used, because Python 3.13 writes the last two groups of an IPv4-mapped address with dots.
    """
    return gid.packed.hex(":", 2)


def _own_gid(port: SendingPort) -> str:
    return words_of(port.gid.value) if port.gid else ""


def _make(domain: Any, queue: Any, kind: int) -> Any:
    qp = library.part("qp")
    room = qp.QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH)
    return qp.QP(domain, qp.QPInitAttr(qp_type=kind, scq=queue, rcq=queue, cap=room, sq_sig_all=0))


def _attributes(port: SendingPort) -> Any:
    attributes = library.part("qp").QPAttr(port_num=port.number)
    attributes.pkey_index = port.pkey_index
    return attributes


def _datagram_attributes(port: SendingPort) -> Any:
    attributes = _attributes(port)
    attributes.qkey = _QKEY
    attributes.sq_psn = 0
    return attributes


def _write(pair: Any, queue: Any, memory: Halves, length: int) -> None:
    request = library.part("wr").SendWR(
        opcode=numbers.RDMA_WRITE, num_sge=1, sg=[memory.source(length)], send_flags=numbers.SIGNALED
    )
    request.set_wr_rdma(memory.region.rkey, memory.target_address)
    pair.post_send(request)
    wait_for(queue, 1)


def _send_datagram(pair: Any, queue: Any, memory: Halves, handle: Any, length: int) -> None:
    wr = library.part("wr")
    pair.post_recv(wr.RecvWR(num_sge=1, sg=[memory.target(_GRH_BYTES + length)]))
    request = wr.SendWR(opcode=numbers.SEND, num_sge=1, sg=[memory.source(length)], send_flags=numbers.SIGNALED)
    request.set_wr_ud(handle, pair.qp_num, _QKEY)
    pair.post_send(request)
    wait_for(queue, 2)
