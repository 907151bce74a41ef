"""The grammar of conditions on devices: a pool's `select` and `exclude`, and a request's `match`."""

from __future__ import annotations

import re

from nri_rdma.model.device import LinkLayer, Protocol
from nri_rdma.model.pci import PCI_ADDRESS, parse_pci_address
from nri_rdma.model.selector import FunctionsOf, Selector
from nri_rdma.text.forms import (
    Form,
    Key,
    names_of,
    number,
    one_or_more,
    parsed_by,
    pattern_schema,
    read_keys,
    text_of,
    word_of,
)
from nri_rdma.text.links import NETDEV, netdev_name
from nri_rdma.text.nodes import Node, Scalar, shown
from nri_rdma.text.reading import core_value, list_of, parsed, string
from nri_rdma.text.refusals import listed, quoted, refused

KERNEL_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")


def read_selectors(node: Node, where: str, keys: tuple[Key, ...] | None = None) -> tuple[Selector, ...]:
    """Read a table of conditions, or a list of tables of which any may match. `keys` are the allowed keys; None:
    SELECTOR_KEYS. Raises RequestError for a wrong condition, and for a table without conditions."""

    def read(item: Node, place: str) -> Selector:
        return _selector(item, place, keys or SELECTOR_KEYS)

    return list_of(read)(node, where) if isinstance(node, list) else (read(node, where),)


def _selector(node: Node, where: str, keys: tuple[Key, ...]) -> Selector:
    selector = Selector(**read_keys(node, where, keys))
    if selector == Selector():
        names = listed(names_of(keys))
        raise refused(where, "there is no condition in it", f"leave it out, or give at least one of {names}")
    return selector


# Values


pci_address = parsed(parse_pci_address, "write a PCI address such as 0000:1b:00.0", what="{} is not a PCI address")
"""Reads a PCI address, with or without its domain. Raises RequestError for any other node."""


def _speed(node: Node, where: str) -> int:
    """Read a number of Gbit/s, or a text such as 200G, which the program `ip` and the capacity in a claim use."""
    text = node.text if isinstance(node, Scalar) else ""
    found = _GIGABITS.fullmatch(text)
    number_of: int = _NUMBER.read(Scalar(found[1], plain=True) if found is not None else node, where)
    return number_of


def _pkey(node: Node, where: str) -> int:
    value = core_value(node)
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,4}", value):
        value = int(value, 16)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 0xFFFF or not value & 0x7FFF:
        raise refused(where, f"{shown(node)} is no P_Key", "write a number such as 0x8001")
    return value


def _pf_name(node: Node, where: str) -> FunctionsOf:
    name, numbers = _ranges(node, where, "write a netdev's name such as ens1f0, or ens1f0#0-3,7 for some of its VFs")
    return FunctionsOf(function=netdev_name(_same(node, name), where), numbers=numbers)


def _root_device(node: Node, where: str) -> FunctionsOf:
    hint = (
        "write a PCI address such as 0000:3b:00.0, 0000:3b:00.0#0-3 for some of its VFs, or a root such as pci0000:3a"
    )
    name, numbers = _ranges(node, where, hint)
    if _PCI_ROOT.fullmatch(name) and not numbers:
        return FunctionsOf(function=name)
    address = parse_pci_address(name)
    if address is None:
        raise refused(where, f"{shown(node)} is not allowed", hint)
    return FunctionsOf(function=str(address), numbers=numbers)


def _ranges(node: Node, where: str, hint: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the text before ``#`` and the ranges of numbers after it: ``ens1f0#0-3,7`` gives ``ens1f0``, (0, 3) and
    (7, 7)."""
    text = string(node, where, hint)
    name, hash_sign, ranges = text.partition("#")
    if not hash_sign:
        return text, ()
    if not _RANGES.fullmatch(ranges):
        raise refused(where, f"{quoted(ranges)} are no numbers of virtual functions", "write such as #0-3,7")
    numbers = tuple(_range(item) for item in ranges.split(","))
    for first, last in numbers:
        if first > last:
            raise refused(where, f"{first}-{last} has its ends the wrong way round", f"write {last}-{first}")
    return name, numbers


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _same(node: Node, text: str) -> Node:
    """Return a scalar node with another text. The class of the node and its quotes stay."""
    assert not isinstance(node, (list, dict))  # string() has refused these
    return type(node)(text, node.plain)


_HEX_ID = re.compile(r"(0x)?[0-9a-fA-F]{4}")
_RANGES = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_GIGABITS = re.compile(r"([0-9]{1,6})[gG]")
_NUMBER = number(1, 100_000)

# The forms

PCI = Form(pci_address, pattern_schema(PCI_ADDRESS))
SPEED = Form(_speed, {"anyOf": [_NUMBER.schema, pattern_schema(_GIGABITS)]})
PF_NAME = one_or_more(Form(_pf_name, {"type": "string"}))
PROTOCOL = one_or_more(word_of(Protocol))
DEVICE_ID = one_or_more(
    parsed_by(
        lambda text: text.lower().removeprefix("0x") if _HEX_ID.fullmatch(text) else None,
        'write four hexadecimal digits in quotes, such as "15b3"',  # without them 0x15b3 is the number 5555 to TOML
        pattern_schema(_HEX_ID),
    )
)
"""The Form (reader and JSON Schema) of PCI device ids, and of PCI vendor ids."""
PKEY = one_or_more(
    Form(
        _pkey,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 0xFFFF},
                {"type": "string", "pattern": "^0x[0-9a-fA-F]{1,4}$"},
            ]
        },
    )
)
_NAME = one_or_more(text_of(KERNEL_NAME, "write the kernel's name of it"))

SELECTOR_KEYS = (
    Key("device", "device", _NAME, "RDMA device by name"),
    Key("netdev", "netdev", one_or_more(NETDEV), "Netdev by name, on the host"),
    Key("pci", "pci", one_or_more(PCI), "PCI address of the function"),
    Key("vendor", "vendor", DEVICE_ID, "PCI vendor id"),
    Key("deviceID", "device_id", DEVICE_ID, "PCI device id"),
    Key("driver", "driver", _NAME, "Driver of the function"),
    Key(
        "pfName",
        "pf_name",
        PF_NAME,
        "Physical function by its netdev, with its virtual functions; NAME#0-3,7 is some of these only",
    ),
    Key(
        "rootDevice",
        "root_device",
        one_or_more(Form(_root_device, {"type": "string"})),
        "What is on, below or a virtual function of a PCI address (ADDRESS#0-3,7: some virtual functions), or below a"
        " root complex",
    ),
    Key("linkLayer", "link_layer", one_or_more(word_of(LinkLayer)), "Link layer of the first port"),
    Key("protocol", "protocol", PROTOCOL, "What the device speaks"),
    Key(
        "pkey",
        "pkey",
        PKEY,
        "Partition of an InfiniBand port, with full or limited membership",
    ),
    Key("numaNode", "numa_node", one_or_more(number(0, 1023)), "NUMA node"),
    Key("speedGbps", "speed_gbps", one_or_more(SPEED), "Speed of the fastest port now"),
    Key("minSpeedGbps", "min_speed_gbps", SPEED, "Least speed of the fastest port now"),
)
