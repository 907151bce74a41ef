"""The grammar of what a pod author asks for: a list of requests, one request, or one word.

Each function and constant of this module that turns a node into a value is a Reader. What can be known from one request
alone is checked here; what concerns all requests of a pod is for nri_rdma.text.annotations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import TypeAlias

from nri_rdma.model.device import CharKind, LinkLayer
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.model.request import (
    DEFAULT_CHAR_KINDS,
    LABEL,
    LABEL_HINT,
    UNLIMITED,
    Align,
    AlignTo,
    DeviceRequest,
    InterfaceConfig,
    Isolation,
    Match,
    Mode,
    RdmaLimits,
    Scope,
)
from nri_rdma.text.modefit import interface_misfit, isolation_misfit
from nri_rdma.text.reading import Fields, Reader, boolean, list_of, matching, one_of, shown, string, whole, word_or
from nri_rdma.text.refusals import listed, quoted, refused
from nri_rdma.text.yaml import Node, Scalar, read_yaml

Address: TypeAlias = IPv4Interface | IPv6Interface

MAX_COUNT = 1024

REQUEST_KEYS = (
    "name",
    "pool",
    "match",
    "count",
    "containers",
    "align",
    "gpus",
    "mode",
    "isolation",
    "interface",
    "devices",
    "memlock",
    "limits",
)
MATCH_KEYS = ("device", "netdev", "pci", "vendor", "driver", "linkLayer", "numaNode", "minSpeedGbps")
ALIGN_KEYS = ("to", "strict")
INTERFACE_KEYS = ("name", "mtu", "addresses")
LIMITS_KEYS = ("hcaHandles", "hcaObjects")


def read_requests(text: str, where: str, scope: Scope, *, own: bool) -> list[DeviceRequest]:
    """The requests that a text asks for; `own` says that it is a container's own list. Those without a name have ""."""
    node = read_yaml(text, where)
    if node is None:
        return []
    if isinstance(node, list):
        return [_request(item, f"{where}[{index}]", scope, own=own) for index, item in enumerate(node)]
    if isinstance(node, Scalar):
        return _one_word(node, where, scope)
    return [_request(node, where, scope, own=own)]


def read_granted(text: str, where: str, name: str, count: int | None) -> DeviceRequest:
    """The request in a text about `count` devices (None: unknown) that something else has chosen: it says how they are
    given, and not which. Its default name is `name`; an empty text asks for nothing special."""
    node = read_yaml(text, where)
    fields = Fields({} if node is None else node, where, REQUEST_KEYS)
    for key in CLAIM_DECIDES:
        if key in fields:
            raise refused(f"{where}.{key}", "which devices it is about is decided already", f"leave {key} out")
    request = _request_of(fields, where, Scope(), count)
    return request if request.name else replace(request, name=name)


def _one_word(word: Scalar, where: str, scope: Scope) -> list[DeviceRequest]:
    value = word.value
    if value is None:
        return []
    if word.text.isascii() and word.text.isdecimal():
        return [DeviceRequest(name="", where=where, count=whole(1, MAX_COUNT)(word, where), scope=scope, word=True)]
    if not isinstance(value, str) or not POOL_NAME.fullmatch(value):
        what = f"{shown(word)} is neither a count nor a pool's name"
        raise refused(where, what, "write a number from 1, the name of a pool, or a list of requests")
    return [DeviceRequest(name="", where=where, pool=value, scope=scope, word=True)]


def _request(node: Node, where: str, scope: Scope, *, own: bool) -> DeviceRequest:
    fields = Fields(node, where, REQUEST_KEYS)
    if own and "containers" in fields:
        hint = "leave it out, or move the request to the pod's list"
        raise refused(f"{where}.containers", "this list belongs to one container already", hint)
    return _request_of(fields, where, scope, fields.read("count", _COUNT, 1))


def read_parameters(node: Node, where: str, count: int | None) -> DeviceRequest:
    """The parameters of a claim, for `count` devices (None: unknown, or all). They are a request without what the claim
    says itself and what the scheduler has decided: which devices, how many, for whom. Raises RequestError."""
    fields = Fields(node, where, REQUEST_KEYS)
    for key in CLAIM_DECIDES:
        if key in fields:
            hint = f"leave it out, and write it as the claim does: {CLAIM_DECIDES[key]}"
            raise refused(f"{where}.{key}", "the claim decides it", hint)
    return _request_of(fields, where, Scope(), count)


CLAIM_DECIDES: Mapping[str, str] = {
    "pool": "in deviceClassName",
    "match": "in selectors of the request",
    "count": "in count or allocationMode of the request",
    "containers": "in resources.claims of the containers",
    "align": "in constraints of the claim",
    "gpus": "in constraints of the claim",
}
"""Keys of a request that a claim's parameters do not have, and where the claim says it."""


def _request_of(fields: Fields, where: str, scope: Scope, count: int | None) -> DeviceRequest:
    only = fields.read("containers", list_of(matching(LABEL, LABEL_HINT)), None)
    request = DeviceRequest(
        name=fields.read("name", matching(LABEL, LABEL_HINT), ""),
        where=where,
        pool=fields.read("pool", matching(POOL_NAME, POOL_NAME_HINT), "default"),
        match=fields.read("match", _match, Match()),
        count=count,
        scope=scope if only is None else Scope(only=frozenset(only), but=scope.but),
        align=fields.read("align", _align, None),
        gpus=fields.read("gpus", list_of(pci_address), ()),
        mode=fields.read("mode", one_of(Mode), None),
        isolation=fields.read("isolation", one_of(Isolation), Isolation.SOFT),
        interface=fields.read("interface", _interface_for(count), InterfaceConfig()),
        char_kinds=frozenset(fields.read("devices", list_of(one_of(CharKind)), DEFAULT_CHAR_KINDS)),
        memlock=fields.read("memlock", memlock, None),
        limits=fields.read("limits", rdma_limits, None),
    )
    if request.mode is not None:  # else the pool says it
        misfit = interface_misfit(request, request.mode) or isolation_misfit(request, request.mode)
        if misfit is not None:
            raise misfit
    return request


# Objects


def _match(node: Node, where: str) -> Match:
    fields = Fields(node, where, MATCH_KEYS)
    return Match(
        device=fields.read("device", matching(KERNEL_NAME, "write an RDMA device's name such as mlx5_0"), None),
        netdev=fields.read("netdev", netdev_name, None),
        pci=fields.read("pci", pci_address, None),
        vendor=fields.read("vendor", _vendor, None),
        driver=fields.read("driver", matching(KERNEL_NAME, "write a driver's name such as mlx5_core"), None),
        link_layer=fields.read("linkLayer", one_of(LinkLayer), None),
        numa_node=fields.read("numaNode", whole(0, 1023), None),
        min_speed_gbps=fields.read("minSpeedGbps", whole(1, 100_000), None),
    )


def _align(node: Node, where: str) -> Align:
    if not isinstance(node, dict):
        return Align(to=one_of(AlignTo)(node, where))
    fields = Fields(node, where, ALIGN_KEYS)
    to = fields.read("to", one_of(AlignTo), None)
    strict = fields.read("strict", boolean, False)
    if to is None:
        raise refused(where, "to is missing", "write {to: gpu} or {to: numa}")
    if strict and to is AlignTo.NONE:
        raise refused(where, "strict needs something to be near to", "write to: gpu or to: numa, or strict: false")
    return Align(to=to, strict=strict)


def _interface_for(count: int | None) -> Reader[InterfaceConfig]:
    def read(node: Node, where: str) -> InterfaceConfig:
        fields = Fields(node, where, INTERFACE_KEYS)
        return InterfaceConfig(
            name=fields.read("name", _name_template_for(count), None),
            mtu=fields.read("mtu", whole(68, 65535), None),
            addresses=fields.read("addresses", _addresses_for(count), ()),
        )

    return read


def rdma_limits(node: Node, where: str) -> RdmaLimits:
    fields = Fields(node, where, LIMITS_KEYS)
    number = whole(1, 2**31 - 1)  # the kernel reads an int
    limits = RdmaLimits(
        hca_handles=fields.read("hcaHandles", number, None),
        hca_objects=fields.read("hcaObjects", number, None),
    )
    if limits == RdmaLimits():
        raise refused(where, "there is no limit in it", f"give at least one of {listed(LIMITS_KEYS)}")
    return limits


# Values

POOL_NAME = re.compile(r"[A-Za-z][-A-Za-z0-9_.]{0,62}")
POOL_NAME_HINT = "name a pool: a letter, then letters, digits, dots, - and _"
KERNEL_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
_VENDOR = re.compile(r"(0x)?([0-9a-fA-F]{4})")
_NETDEV_NAME = re.compile(r"[!-.0-9;-~]{1,15}")
"""Printable ASCII but ``/`` and ``:``, as dev_valid_name() of the kernel; IFNAMSIZ is 16 with the NUL."""
NETDEV_HINT = "use 1 to 15 printable characters without blanks, / and :"
_RESERVED_NETDEV_NAMES = frozenset({".", "..", "lo", "all", "default"})
"""``all`` and ``default`` are folders of net.ipv4.conf: the kernel takes no link of that name."""
_COUNT_HINT = f"write a whole number from 1 to {MAX_COUNT}, or all"
_COUNT = word_or("all", None, whole(1, MAX_COUNT, hint=_COUNT_HINT))
_MEMLOCK_HINT = "write unlimited, or a number of bytes"
memlock = word_or("unlimited", UNLIMITED, whole(1, 2**63 - 1, hint=_MEMLOCK_HINT))


def pci_address(node: Node, where: str) -> PciAddress:
    hint = "write a PCI address such as 0000:1b:00.0"
    address = parse_pci_address(string(node, where, hint))
    if address is None:
        raise refused(where, f"{shown(node)} is not a PCI address", hint)
    return address


def _vendor(node: Node, where: str) -> str:
    """Four hexadecimal digits, as written: ``14e4`` is a float to YAML, ``8086`` an int, ``15b3`` a string."""
    found = _VENDOR.fullmatch(getattr(node, "text", ""))
    if found is None:
        raise refused(where, f"{shown(node)} is not a vendor", "write its four hexadecimal digits, such as 15b3")
    return found[2].lower()


def netdev_name(node: Node, where: str) -> str:
    name = matching(_NETDEV_NAME, NETDEV_HINT)(node, where)
    if name in _RESERVED_NETDEV_NAMES:
        raise refused(where, f"{name!r} is reserved", NETDEV_HINT)
    return name


def _name_template_for(count: int | None) -> Reader[str]:
    """``%d`` and the two digits that may replace it are of one length, so that the template's length is the name's."""

    def read(node: Node, where: str) -> str:
        name = netdev_name(node, where)
        if name.count("%") != name.count("%d") or name.count("%") > 1:
            raise refused(where, f"{quoted(name)} has a % that is not its only %d", "write at most one %, as %d")
        if count != 1 and "%d" not in name:
            what = f"{quoted(name)} is one name, but the request is for {'all' if count is None else count} devices"
            raise refused(where, what, "write %d where the number goes, such as rdma%d")
        return name

    return read


def _addresses_for(count: int | None) -> Reader[tuple[tuple[Address, ...], ...]]:
    """A list for one device, a list of `count` lists for more."""
    flat = list_of(_address)

    def read(node: Node, where: str) -> tuple[tuple[Address, ...], ...]:
        if count == 1:
            return (flat(node, where),)
        if count is None:
            raise refused(where, "addresses need a known number of devices", "write count: N instead of all")
        if not isinstance(node, list) or len(node) != count or not all(isinstance(item, list) for item in node):
            what = f"{count} devices cannot share a list of addresses"
            raise refused(where, what, f"write {count} lists, one per device, such as [[10.0.0.2/24], [10.0.1.2/24]]")
        return tuple(flat(item, f"{where}[{index}]") for index, item in enumerate(node))

    return read


def _address(node: Node, where: str) -> Address:
    hint = "write an address with its prefix length, such as 10.0.0.2/24 or fd00::2/64"
    text = string(node, where, hint)
    host, slash, length = text.partition("/")
    if not slash or not length.isascii() or not length.isdecimal() or "%" in host:
        raise refused(where, f"{quoted(text)} is not an address with a prefix length", hint)
    try:
        address = ip_interface(text)
    except ValueError as error:
        raise refused(where, f"{quoted(text)} is not an address with a prefix length", hint) from error
    for is_misuse, what in _MISUSES:
        if is_misuse(address):
            raise refused(where, f"{text} is {what}", "write the address of one host")
    return address


# Of the address without its network: 3.11 takes no interface for the unspecified address.
_MISUSES: tuple[tuple[Callable[[Address], bool], str], ...] = (
    (lambda it: it.ip.is_unspecified, "the unspecified address"),
    (lambda it: it.ip.is_loopback, "a loopback address"),
    (lambda it: it.ip.is_multicast, "a multicast address"),
    (lambda it: it.version == 6 and it.ip.ipv4_mapped is not None, "an IPv4 address in the form of IPv6"),
    (lambda it: str(it.ip) == "255.255.255.255", "the broadcast address"),
    (lambda it: it.network.prefixlen == 0, "in a network that is everything"),
    (lambda it: _is_subnet(it) and it.ip == it.network.network_address, "the network's address"),
    (lambda it: _is_subnet(it) and it.ip == it.network.broadcast_address, "the broadcast address"),
)


def _is_subnet(address: Address) -> bool:
    """Whether the first and the last address are not for hosts: not so in IPv6, nor in /31 (RFC 3021) and /32."""
    return address.version == 4 and address.network.prefixlen < 31
