"""Checks a port of an RDMA device before data is sent: its state, its P_Key, and the GID to send with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from socket import ntohs
from typing import Any  # Any: pyverbs has no types

from nri_rdma.decide import gids
from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.steps import StepError, failing
from nri_rdma.model.gid import Gid, GidType

ADDRESSES = Path("/proc/net/if_inet6")
"""The IPv6 addresses of this network namespace."""
_TENTATIVE = 0x40
"""The flag of an address that is still tested for duplicates (IFA_F_TENTATIVE in the kernel's if_addr.h)."""
_TEST_S, _POLL_S = 2.2, 0.02
"""The longest wait for the end of this test (it takes two seconds at most by default), and the pause between looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingPort:
    """An active port of an RDMA device, with what is needed to send from it. `gid` is None for iWARP, which uses no
    GIDs."""

    number: int
    transport: str
    lid: int
    mtu: int
    """The code of ibv_mtu: 1 is 256 bytes, 5 is 4096."""
    max_message_bytes: int
    gid: Gid | None
    pkey_index: int = 0
    """The index of the P_Key to send with."""


def look_at(context: Any, task: Mapping[str, Any], answer: dict[str, Any]) -> SendingPort:
    """Check the port of the open device `context` that a self-check task names, and return it with the GID to send
    with. Waits while the GID's address is tested for duplicates. Raises StepError if the port cannot carry data.

    Also writes the port's transport into `answer`, even if the port cannot carry data.
    """
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
        if gid is not None and gid.type is GidType.ROCE_V2:
            _await_tested(gid.value)
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
    """Return the used entries of a port's GID table. `length` is the number of entries in the table."""
    ports = context.query_device().phys_port_cnt
    found = context.query_gid_table(length * ports)
    return [
        Gid(index=it.gid_index, value=IPv6Address(it.gid_str()), type=GidType(numbers.GID_TYPES[it.gid_type]))
        for it in found
        if it.port_num == port
    ]


def written(gid: Gid) -> str:
    """Return a GID as text. IPv4-mapped GIDs get the dotted form (``::ffff:10.0.0.1``), which Python before 3.13 does
    not write."""
    return f"::ffff:{gid.address}" if gid.value.ipv4_mapped else str(gid.value)


def _transport(device: str, port: Any) -> str:
    listed = library.part("device").get_device_list()
    if any(it.name.decode() == device and it.transport_type == numbers.IWARP for it in listed):
        return "iwarp"
    return "roce" if port.link_layer == numbers.LINK_ETHERNET else "ib"


def _full_membership(context: Any, port: int, length: int) -> int:
    """Return the index of the first P_Key with full membership. `length` is the number of the port's P_Keys. Raises
    StepError if none of them has full membership, because limited members cannot send to themselves."""
    limited = []
    for index in range(length):
        key = ntohs(context.query_pkey(port, index))
        if key & numbers.FULL_MEMBER:
            return index
        limited += [f"{key:#06x}"] if key else []
    keys = ", ".join(limited) or "none"
    raise StepError("port", f"the P_Keys of port {port} are {keys}: the port is a limited member of each partition")


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


def _await_tested(address: IPv6Address) -> None:
    """Wait while the kernel tests a new IPv6 address for duplicates: it leads no packets to the address before."""
    until = time.monotonic() + _TEST_S
    while _is_tentative(address) and time.monotonic() < until:
        time.sleep(_POLL_S)


def _is_tentative(address: IPv6Address) -> bool:
    """Return whether the kernel still tests the address for duplicates. False if this namespace does not have it."""
    lines = ADDRESSES.read_text().splitlines() if ADDRESSES.exists() else []  # a kernel without IPv6 has no such file
    found = [words for words in map(str.split, lines) if words[0] == address.packed.hex()]
    return any(int(words[4], 16) & _TENTATIVE for words in found)
