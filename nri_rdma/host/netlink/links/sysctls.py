"""Reads and writes the per-link settings under /proc/sys/net: those of IPv4, IPv6 and their neighbour tables.

A link that moves loses all of these settings, and gets the defaults of its new namespace. Nearly all settings are read
over netlink, in one message instead of 130 files; those that netlink does not report are read from their files.
Settings are written through the files: netlink cannot set those of IPv6, and for IPv4 it sets only the number, without
its effects (new route lookups, events for routing daemons). Neighbour tables are set over netlink, which uses
milliseconds where some files use seconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Final

from nri_rdma.attach.ops import SetSysctl
from nri_rdma.attach.port import KernelError
from nri_rdma.host.kernel_file import read_text
from nri_rdma.host.netlink.links.link_message import families_of
from nri_rdma.host.netlink.namespaces.proc_sys import NET as _ROOT
from nri_rdma.host.netlink.namespaces.proc_sys import writable_net
from nri_rdma.host.netlink.routes.routes import Route, read_routes
from nri_rdma.host.netlink.sockets.route_socket import Request, RouteSocket
from nri_rdma.host.netlink.sockets.spare_sockets import momentary
from nri_rdma.wire.netlink import NESTED, encode_attribute, encode_u32, read_attributes

_GETNEIGHTBL, _SETNEIGHTBL = 66, 67  # RTM_*, include/uapi/linux/rtnetlink.h
_FIRST_ATTRIBUTE_OF_TABLE, _FAMILY_AT = 20, 16
_INET_CONF, _INET6_CONF = 1, 2  # IFLA_INET_CONF, IFLA_INET6_CONF, include/uapi/linux/if_link.h
_AF_INET, _AF_INET6 = 2, 10
_SIOCGIFNAME, _IFREQ = 0x8910, struct.Struct("=16xi20x")  # include/uapi/linux/sockios.h, if.h
_I32, _U32, _U64 = struct.Struct("=i"), struct.Struct("=I"), struct.Struct("=Q")
_NDTMSG = struct.Struct("=Bxxx")
_NDTA_NAME, _NDTA_PARMS, _NDTPA_IFINDEX = 1, 6, 1  # include/uapi/linux/neighbour.h
_TABLES = {_AF_INET: ("ipv4", b"arp_cache\0"), _AF_INET6: ("ipv6", b"ndisc_cache\0")}

_IPV4: Final = (  # IPV4_DEVCONF_*, include/uapi/linux/ip.h, from 1 on
    "forwarding", "mc_forwarding", "proxy_arp", "accept_redirects", "secure_redirects", "send_redirects",
    "shared_media", "rp_filter", "accept_source_route", "bootp_relay", "log_martians", "tag", "arp_filter",
    "medium_id", "disable_xfrm", "disable_policy", "force_igmp_version", "arp_announce", "arp_ignore",
    "promote_secondaries", "arp_accept", "arp_notify", "accept_local", "src_valid_mark", "proxy_arp_pvlan",
    "route_localnet", "igmpv2_unsolicited_report_interval", "igmpv3_unsolicited_report_interval",
    "ignore_routes_with_linkdown", "drop_unicast_in_l2_multicast", "drop_gratuitous_arp", "bc_forwarding",
    "arp_evict_nocarrier",
)  # fmt: skip
_IPV6: Final = (  # DEVCONF_*, include/uapi/linux/ipv6.h, from 0 on
    "forwarding", "hop_limit", "mtu", "accept_ra", "accept_redirects", "autoconf", "dad_transmits",
    "router_solicitations", "router_solicitation_interval", "router_solicitation_delay", "use_tempaddr",
    "temp_valid_lft", "temp_prefered_lft", "regen_max_retry", "max_desync_factor", "max_addresses",
    "force_mld_version", "accept_ra_defrtr", "accept_ra_pinfo", "accept_ra_rtr_pref", "router_probe_interval",
    "accept_ra_rt_info_max_plen", "proxy_ndp", "optimistic_dad", "accept_source_route", "mc_forwarding",
    "disable_ipv6", "accept_dad", "force_tllao", "ndisc_notify", "mldv1_unsolicited_report_interval",
    "mldv2_unsolicited_report_interval", "suppress_frag_ndisc", "accept_ra_from_local", "use_optimistic",
    "accept_ra_mtu", "stable_secret", "use_oif_addrs_only", "accept_ra_min_hop_limit",
    "ignore_routes_with_linkdown", "drop_unicast_in_l2_multicast", "drop_unsolicited_na", "keep_addr_on_down",
    "router_solicitation_max_interval", "seg6_enabled", "seg6_require_hmac", "enhanced_dad", "addr_gen_mode",
    "disable_policy", "accept_ra_rt_info_min_plen", "ndisc_tclass", "rpl_seg_enabled", "ra_defrtr_metric",
    "ioam6_enabled", "ioam6_id", "ioam6_id_wide", "ndisc_evict_nocarrier", "accept_untracked_na",
    "accept_ra_min_lft", "force_forwarding",
)  # fmt: skip
_IN_MILLISECONDS = frozenset(
    {
        "router_solicitation_interval",
        "router_solicitation_delay",
        "router_solicitation_max_interval",
        "router_probe_interval",
    }
)
"""Settings that netlink reports in milliseconds, while their files under /proc/sys have seconds."""
_UNSIGNED = {"ioam6_id_wide", "ra_defrtr_metric"}
_NEIGH: Final = {  # NDTPA_*: those that can be set
    4: "base_reachable_time_ms",
    5: "retrans_time_ms",
    6: "gc_stale_time_ms",
    7: "delay_first_probe_time_ms",
    9: "app_solicit",
    10: "ucast_solicit",
    11: "mcast_solicit",
    12: "anycast_delay_ms",
    13: "proxy_delay_ms",
    14: "proxy_qlen",
    15: "locktime_ms",
    16: "unres_qlen_bytes",
    17: "mcast_resolicit",
    19: "interval_probe_time_ms",
}
_NEIGH_NUMBERS = {name: number for number, name in _NEIGH.items()}

_KEPT = 64
"""The number of settings texts to remember. A link's settings are usually unchanged from pod to pod."""
_FORWARDING = "ipv6/conf/forwarding"
_NOT_OURS = frozenset({"mc_forwarding", "addr_gen_mode", "stable_secret"})
"""Settings that are not taken from netlink's list. mc_forwarding can be set only by multicast routing daemons;
addr_gen_mode is part of LinkState.settings; stable_secret is always 0 in the list."""
_IPV4_LINES = tuple("" if name in _NOT_OURS else f"ipv4/conf/{name} " for name in _IPV4)
_IPV6_LINES = tuple(("" if name in _NOT_OURS else f"ipv6/conf/{name} ", name) for name in _IPV6)


def read_neighbour_tables(route: RouteSocket, ifindexes: Collection[int]) -> Mapping[int, str]:
    """Return the settings of each link's neighbour tables by ifindex, as lines of LinkState.sysctls. Raises KernelError
    if the kernel refuses the query, and WireError for a malformed message."""
    needles = (re.escape(encode_u32(_NDTPA_IFINDEX, ifindex)) for ifindex in ifindexes)
    own = re.compile(b"|".join(needles) or b"(?!)")
    messages = route.dump(
        _GETNEIGHTBL, _NDTMSG.pack(0), "list neighbour tables", lambda raw: own.search(raw) is not None
    )
    found: dict[int, list[str]] = {ifindex: [] for ifindex in ifindexes}
    for raw in messages:
        parameters = dict(read_attributes(raw[_FIRST_ATTRIBUTE_OF_TABLE:])).get(_NDTA_PARMS, b"")
        ifindex, lines = _neighbour_table(raw[_FAMILY_AT], parameters)
        if ifindex in found:
            found[ifindex] += lines
    return {ifindex: "\n".join(lines) for ifindex, lines in found.items()}


@lru_cache(_KEPT)
def _neighbour_table(family: int, data: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the ifindex of a link and the settings of its neighbour table, one line per setting (`ipv4/neigh/NAME
    VALUE`). There are no lines for a family other than IPv4 and IPv6. `data` are the netlink attributes of the table's
    parameters."""
    parameters = dict(read_attributes(data))
    (ifindex,) = _U32.unpack(parameters.get(_NDTPA_IFINDEX, bytes(4)))
    words = _TABLES.get(family)
    if words is None:
        return ifindex, ()
    known = ((number, name) for number, name in _NEIGH.items() if number in parameters)
    return ifindex, tuple(
        f"{words[0]}/neigh/{name} {int.from_bytes(parameters[number], sys.byteorder)}" for number, name in known
    )


def read_sysctls(link: bytes, name: str, neighbours: str) -> str:
    """Return the value of LinkState.sysctls for a link: lines that begin with ``ipv4/conf/rp_filter``,
    ``ipv6/conf/accept_ra``, ``ipv4/neigh/locktime_ms`` and so on. The calling thread must be in the link's namespace.

    `link` is the kernel's message of the link, `neighbours` the lines of its neighbour tables. Raises KernelError if a
    setting cannot be read, and WireError for a malformed message.
    """
    families = families_of(link)
    lines: list[str] = []
    if _AF_INET in families:
        lines += _of_ipv4(dict(read_attributes(families[_AF_INET])).get(_INET_CONF, b""))
        lines += _of_files("ipv4", name)
    if _AF_INET6 in families:
        lines += _of_ipv6(dict(read_attributes(families[_AF_INET6])).get(_INET6_CONF, b""))
        lines += _of_files("ipv6", name)
    return "\n".join([*lines, neighbours]).strip()


_READ_ONLY: Final = (
    "could not get its sysctls back: /proc/sys is read-only for the daemon, which may not mount a procfs of its own"
    " (its container's securityContext: capability SYS_ADMIN, and a seccompProfile that allows fsopen)"
)


def write_sysctl(route: RouteSocket, ifindex: int, change: SetSysctl) -> None:
    """Write one setting of a link. The calling thread must be in the link's namespace.

    Raises KernelError if the kernel refuses; EBUSY if the setting enables IPv6 forwarding and that would end a default
    route.
    """
    key, value = change.key, change.value
    if "/neigh/" in key:
        route.do(_neighbour_request(ifindex, key, int(value)))
        return
    if key == _FORWARDING and value != "0" and (links := _announced_over(read_routes((), ()))):
        detail = f"that would end the default route over {links}"
        raise KernelError(f"set {key} of link {ifindex}", errno.EBUSY, detail)
    _write_file(ifindex, key, value)


def forwarding_of(link: bytes) -> bool:
    """Return whether a link forwards IPv6, from the kernel's message of the link. Raises WireError for a malformed
    message."""
    families = families_of(link)
    numbers = dict(read_attributes(families.get(_AF_INET6, b""))).get(_INET6_CONF, b"")
    return len(numbers) >= _I32.size and _I32.unpack_from(numbers)[0] != 0  # the first of _IPV6


def costs_of_return(forwards: bool, routes: Iterable[Route]) -> tuple[str, ...]:
    """Return what would be lost when a link returns to the host, as texts for LinkState.unreturnable. `forwards`: the
    link forwards IPv6. `routes` are the host's routes.

    If no sysctl can be written, the link loses its sysctls. If the link forwards IPv6, restoring its forwarding may end
    a default route of the host.
    """
    if writable_net() is None:
        return (_READ_ONLY,)
    if not forwards or _read(f"{_ROOT}/ipv6/conf/default/forwarding") != "0":
        return ()  # a link that returns forwards at once
    links = _announced_over(routes)
    reason = f"forwards IPv6, and to set that again would end the default route that a router announced over {links}"
    return (reason,) if links else ()


def _announced_over(routes: Iterable[Route]) -> str:
    """Return the names of the links whose default routes would end if IPv6 forwarding were enabled on any link of the
    namespace.

    These are links with a default route from a router advertisement (rt6_purge_dflt_routers), except links with
    accept_ra 2.
    """
    announced = {link for route in routes if route.is_announced for link in route.default_links}
    names = sorted(socket.if_indextoname(link) for link in announced)
    return ", ".join(name for name in names if _read(f"{_ROOT}/ipv6/conf/{name}/accept_ra") != "2")


def _read(path: str) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise KernelError(f"read {path}", error.errno or 0) from error


@lru_cache(_KEPT)
def _of_ipv4(data: bytes) -> tuple[str, ...]:
    lines = zip(_IPV4_LINES, _I32.iter_unpack(data), strict=False)
    return tuple(f"{line}{value}" for line, (value,) in lines if line)


@lru_cache(_KEPT)
def _of_ipv6(data: bytes) -> tuple[str, ...]:
    lines = []
    for (line, name), (value,) in zip(_IPV6_LINES, _I32.iter_unpack(data), strict=False):
        if name in _IN_MILLISECONDS:
            lines.append(f"{line}{value // 1000}")
        elif name in _UNSIGNED:
            lines.append(f"{line}{value & 0xFFFFFFFF}")
        elif line:
            lines.append(f"{line}{value}")
    return tuple(lines)


def _of_files(family: str, name: str) -> Iterator[str]:
    """Yield the settings of a link that netlink does not report, read from their files. `family` is "ipv4" or "ipv6",
    and `name` the link's name."""
    for file in _untold(family):
        try:
            yield f"{family}/conf/{file} {_read(f'{_ROOT}/{family}/conf/{name}/{file}')}"
        except KernelError as error:
            if error.errno not in {errno.ENOENT, errno.EIO}:  # the link has none; the secret is not set
                raise


@cache
def _untold(family: str) -> tuple[str, ...]:
    told = frozenset(_IPV4 if family == "ipv4" else _IPV6) - {"stable_secret"}  # mc_forwarding, addr_gen_mode: not ours
    try:
        files = {file.name for file in (_ROOT / family / "conf" / "default").iterdir()}
    except FileNotFoundError:
        return ()
    return tuple(sorted(files - told))


def _write_file(ifindex: int, key: str, value: str) -> None:
    """Write the value of a setting into its file under /proc/sys/net. Raises KernelError if the kernel refuses. The
    error does not show the value, because one of the settings is a secret."""
    family, _, file = key.split("/")
    try:
        path = f"{writable_net() or _ROOT}/{family}/conf/{_name_of(ifindex)}/{file}"
    except OSError as error:
        raise KernelError(f"set {key} of link {ifindex}", errno.ENODEV) from error
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())  # a sysctl accepts its value only in one write
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(f"write {path}", error.errno or 0, error.strerror or "") from error


def _name_of(ifindex: int) -> str:
    """Return the name of a link in the calling thread's namespace. Raises OSError if there is no such link.

    Used instead of socket.if_indextoname because it reuses a socket.
    """
    with momentary(socket.NETLINK_ROUTE) as asking:
        told = fcntl.ioctl(asking, _SIOCGIFNAME, _IFREQ.pack(ifindex))
    return os.fsdecode(told.partition(b"\0")[0])


def _neighbour_request(ifindex: int, key: str, value: int) -> Request:
    version, _, name = key.split("/")
    family, table = next((family, table) for family, (word, table) in _TABLES.items() if word == version)
    number = _NEIGH_NUMBERS[name]
    form = _U64 if name.endswith("_ms") else _U32
    parameters = encode_u32(_NDTPA_IFINDEX, ifindex) + encode_attribute(number, form.pack(value))
    return Request(
        kind=_SETNEIGHTBL,
        body=_NDTMSG.pack(family)
        + encode_attribute(_NDTA_NAME, table)
        + encode_attribute(_NDTA_PARMS | NESTED, parameters),
        operation=f"set {key} of link {ifindex} to {value}",
    )
