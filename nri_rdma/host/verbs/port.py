"""A port that is to send: whether it can, and by which entry of its GID table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from socket import ntohs
from typing import Any  # Any: pyverbs has no types

from nri_rdma.decide import gids
from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.steps import StepError, failing
from nri_rdma.model.gid import Gid, GidType


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingPort:
    """A port that is active; `gid` None: it is one of iWARP, which has no use for GIDs."""

    number: int
    transport: str
    lid: int
    mtu: int
    """As ibv_mtu: 1 is 256 bytes, 5 is 4096."""
    max_message_bytes: int
    gid: Gid | None
    pkey_index: int = 0
    """The entry of its P_Key table by which it sends."""


def look_at(context: Any, task: Mapping[str, Any], answer: dict[str, Any]) -> SendingPort:
    """Return the port of a task, with the GID by which it sends. StepError: it cannot carry data.

    Its transport is written into `answer`, too."""
    number = task.get("port", 1)
    with failing("port"):
        told = context.query_port(number)
        transport = answer["transport"] = _transport(task["device"], told)
        if told.state != numbers.PORT_ACTIVE:
            state = numbers.PORT_STATES.get(told.state, told.state)
            physical = numbers.PHYSICAL_STATES.get(told.phys_state, told.phys_state)
            raise StepError("port", f"port {number} is {state} (physical state {physical})")
        pkey_index = _full_membership(context, number, told.pkey_tbl_len) if transport == "ib" else 0
    with failing("gid"):
        gid = None if transport == "iwarp" else _gid(context, number, told.gid_tbl_len, task)
    return SendingPort(
        number=number,
        transport=transport,
        lid=told.lid,
        mtu=told.active_mtu,
        max_message_bytes=told.max_msg_sz,
        gid=gid,
        pkey_index=pkey_index,
    )


def table_of(context: Any, port: int, length: int) -> Sequence[Gid]:
    """Return the entries of a port's GID table that are in use."""
    ports = context.query_device().phys_port_cnt
    found = context.query_gid_table(length * ports)
    return [
        Gid(index=it.gid_index, value=IPv6Address(it.gid_str()), type=GidType(numbers.GID_TYPES[it.gid_type]))
        for it in found
        if it.port_num == port
    ]


def written(gid: Gid) -> str:
    """Return the value of a GID; Python before 3.13 writes those of IPv4 with hexadecimal digits alone."""
    return f"::ffff:{gid.address}" if gid.value.ipv4_mapped else str(gid.value)


def _transport(device: str, port: Any) -> str:
    listed = library.part("device").get_device_list()
    if any(it.name.decode() == device and it.transport_type == numbers.IWARP for it in listed):
        return "iwarp"
    return "roce" if port.link_layer == numbers.LINK_ETHERNET else "ib"


def _full_membership(context: Any, port: int, length: int) -> int:
    """Return the index of the port's first P_Key of a full member."""
    limited = []
    for index in range(length):
        key = ntohs(context.query_pkey(port, index))
        if key & numbers.FULL_MEMBER:
            return index
        limited += [f"{key:#06x}"] if key else []
    keys = ", ".join(limited) or "none"
    raise StepError("port", f"the P_Keys of port {port} are {keys}: a limited member of each partition")


def _gid(context: Any, port: int, length: int, task: Mapping[str, Any]) -> Gid:
    table = table_of(context, port, length)
    wanted = task.get("gid_index")
    version = task.get("roce_version", 2)
    if wanted is None:
        gid = gids.choose(table, [ip_address(it) for it in task.get("addresses", ())], version)
        lacks = f"the GID table of port {port} has no entry of RoCE v{version}"
    else:
        gid = next((it for it in table if it.index == wanted), None)
        lacks = f"index {wanted} of the GID table of port {port} is empty"
    if gid is None:
        entries = ", ".join(f"{it.index} {written(it)} ({it.type})" for it in table) or "nothing"
        raise StepError("gid", f"{lacks}; it has {entries}")
    return gid
