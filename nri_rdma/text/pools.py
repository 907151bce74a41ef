"""The grammar of what an administrator offers: the tables `pools` and `rules` of the configuration.

A Form is how a value is read, together with the JSON Schema of what is read; a Key is a Form under a name. The tables
of keys at the end are the whole grammar: readers, schema and documentation follow them. Values are read strictly:
RequestError names the path of what is wrong, and the nearest known key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any  # Any: fields of the value that a table becomes

from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.device import CharKind, LinkLayer, Protocol
from nri_rdma.model.pci import parse_pci_address
from nri_rdma.model.pool import DEFAULT_POOL, Pool, PoolDoor, Rule
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import FunctionsOf, Selector
from nri_rdma.text.reading import Fields, Reader, boolean, core_value, list_of, matching, one_of, shown, string, whole
from nri_rdma.text.refusals import bounded, listed, quoted, refused
from nri_rdma.text.requests import (
    INTERFACE_KEYS,
    KERNEL_NAME,
    LIMITS_KEYS,
    POOL_NAME,
    POOL_NAME_HINT,
    memlock,
    netdev_name,
    pci_address,
    rdma_limits,
)
from nri_rdma.text.yaml import Node, Scalar

Schema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is read, and the JSON Schema of it."""

    read: Reader[Any]
    schema: Schema


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table: the field that it fills, its form, and what it means."""

    name: str
    field: str
    form: Form
    text: str


def node_of(value: object) -> Node:
    """A value of TOML or JSON as the readers take it. Its kind is kept: what is text there is no number."""
    match value:
        case None:
            return Scalar("null", plain=True)
        case dict():
            return {str(key): node_of(item) for key, item in value.items()}
        case list():
            return [node_of(item) for item in value]
        case bool():
            return Scalar("true" if value else "false", plain=True)
        case str():
            return Scalar(value, plain=False)
        case _:
            return Scalar(str(value), plain=True)


def read_pools(node: Node, where: str = "pools") -> tuple[Pool, ...]:
    """The pools, in the order they are written. Raises RequestError."""
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of pools", "write [pools.NAME], or leave pools out")
    pools = tuple(_pool(name, item, f"{where}.{bounded(name)}") for name, item in node.items())
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if (set(pool.select), set(pool.exclude)) == (set(other.select), set(other.exclude)):
                what = f"it has the same devices as {other.where}, and a device is in one pool only"
                raise refused(pool.where, what, "give them different select or exclude, or make them one pool")
    return pools


def read_rules(node: Node, where: str = "rules") -> tuple[Rule, ...]:
    """The rules, in the order in which they are asked. Raises RequestError."""
    if not isinstance(node, list) or not node:
        raise refused(where, f"{shown(node)} is no list of rules", "write [[rules]], or leave rules out")
    rules = tuple(read_rule(item, f"{where}[{index}]", index + 1) for index, item in enumerate(node))
    names: dict[str, str] = {}
    for rule in rules:
        if rule.name in names:
            raise refused(f"{rule.where}.name", f"{rule.name} is the name of {names[rule.name]}", "choose another")
        names[rule.name] = rule.where
    return rules


def check_rules(pools: tuple[Pool, ...], rules: tuple[Rule, ...]) -> None:
    """Raise RequestError for a rule about a pool that is not there, or about modes that none of its pools serves."""
    by_name = {pool.name: pool for pool in pools}
    for rule in rules:
        for index, name in enumerate(rule.pools):
            if name not in by_name:
                what = f"there is no pool {quoted(name)}"
                raise refused(f"{rule.where}.pools[{index}]", what, f"the pools are {listed(by_name) or DEFAULT_POOL}")
        served = {mode for name in rule.pools or by_name for mode in by_name[name].modes}
        for index, mode in enumerate(rule.modes):
            if mode not in served:
                what = f"none of its pools serves mode {mode}"
                raise refused(f"{rule.where}.modes[{index}]", what, f"they serve {listed(sorted(served))}")


def read_adoption(node: Node, where: str = "adopt") -> Adoption:
    """What is done with what others gave to containers. Raises RequestError."""
    fields = Fields(node, where, (*(key.name for key in ADOPT_KEYS), "vendors"))
    own: dict[str, Any] = {
        key.field: fields.read(key.name, key.form.read, None) for key in ADOPT_KEYS if key.name in fields
    }
    return Adoption(others=VendorAdoption(**own), vendors=fields.read("vendors", _vendors, {}))


def _vendors(node: Node, where: str) -> Mapping[str, VendorAdoption]:
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of vendors", 'write [adopt.vendors."vendor.example.com"]')
    for name in node:
        if not _VENDOR.fullmatch(name):
            hint = "write the part of a CDI device's name that is before the slash"
            raise refused(where, f"{quoted(name)} is no vendor's name", hint)
    return {name: VendorAdoption(**_table(item, f"{where}.{name}", ADOPT_KEYS)) for name, item in node.items()}


# Tables


def _table(node: Node, where: str, keys: tuple[Key, ...]) -> dict[str, Any]:
    """The fields that a table fills."""
    fields = Fields(node, where, tuple(key.name for key in keys))
    return {key.field: fields.read(key.name, key.form.read, None) for key in keys if key.name in fields}


def _pool(name: str, node: Node, where: str) -> Pool:
    if not POOL_NAME.fullmatch(name):
        raise refused(where, f"{quoted(name)} is not allowed", POOL_NAME_HINT)
    given = _table(node, where, POOL_KEYS)
    if "modes" not in given:
        raise refused(where, "modes is missing", 'write modes = ["shared"], or ["exclusive", "shared"]')
    pool = Pool(name=name, where=where, **given)
    if pool.requires_isolation and Mode.SHARED in pool.modes:
        what = "what others may have too cannot be hidden from them"
        raise refused(f"{where}.requireIsolation", what, 'write modes = ["exclusive"], or leave requireIsolation out')
    _refuse_defaults_above_maxima(pool)
    return pool


def _refuse_defaults_above_maxima(pool: Pool) -> None:
    for key, field in zip(LIMITS_KEYS, ("hca_handles", "hca_objects"), strict=True):
        default, most = getattr(pool.limits, field, None), getattr(pool.max_limits, field, None)
        if default is not None and most is not None and default > most:
            raise refused(f"{pool.where}.limits.{key}", f"{default} is above maxLimits.{key}, {most}", "lower it")


def read_rule(node: Node, where: str, number: int) -> Rule:
    """One rule, whose name is its number when it has none. Raises RequestError."""
    given = {"name": str(number), **_table(node, where, RULE_KEYS)}
    rule = Rule(where=where, **given)
    if not rule.allow:
        for key in RULE_KEYS:
            if key.field in given and key.field in _PERMISSIONS:
                raise refused(f"{where}.{key.name}", "a rule with allow = false permits nothing", "leave it out")
    return rule


def _selectors(node: Node, where: str) -> tuple[Selector, ...]:
    """A table, or a list of them: any of these."""
    if isinstance(node, list):
        return list_of(_selector)(node, where)
    return (_selector(node, where),)


def _selector(node: Node, where: str) -> Selector:
    selector = Selector(**_table(node, where, SELECTOR_KEYS))
    if selector == Selector():
        keys = listed(key.name for key in SELECTOR_KEYS)
        raise refused(where, "there is no condition in it", f"leave it out, or give at least one of {keys}")
    return selector


def _labels(node: Node, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of labels", 'write { team = "ml" }')
    for key in node:
        if not _LABEL_KEY.fullmatch(key):
            raise refused(where, f"{quoted(key)} is no label's key", "write it as in the pod, such as example.com/team")
    return tuple((key, _LABEL_VALUE.read(item, f"{where}.{key}")) for key, item in node.items())


# Values


def _one_or_more(form: Form) -> Form:
    """A value, or a list of them: any of these."""

    def read(node: Node, where: str) -> tuple[object, ...]:
        return list_of(form.read)(node, where) if isinstance(node, list) else (form.read(node, where),)

    return Form(read, {"anyOf": [form.schema, _list_schema(form.schema)]})


def _some(form: Form) -> Form:
    """A list with at least one value."""
    return Form(list_of(form.read), _list_schema(form.schema))


def _set(form: Form) -> Form:
    """A list that may be empty, for what may be nothing."""

    def read(node: Node, where: str) -> frozenset[object]:
        return frozenset() if node == [] else frozenset(list_of(form.read)(node, where))

    return Form(read, {"type": "array", "items": form.schema, "uniqueItems": True})


def _list_schema(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}


def _word(kind: type[StrEnum]) -> Form:
    return Form(one_of(kind), {"enum": [str(member) for member in kind]})


def _text(pattern: re.Pattern[str], hint: str) -> Form:
    return Form(matching(pattern, hint), _pattern_schema(pattern))


def _number(low: int, high: int) -> Form:
    return Form(whole(low, high), {"type": "integer", "minimum": low, "maximum": high})


def _pattern_schema(pattern: re.Pattern[str]) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}


def _hex_id(node: Node, where: str) -> str:
    """Four hexadecimal digits in quotes: 0x15b3 without them is a number to TOML, and its digits are gone."""
    text = string(node, where, _HEX_HINT)
    if not _HEX_ID.fullmatch(text):
        raise refused(where, f"{quoted(text)} is not allowed", _HEX_HINT)
    return text.lower().removeprefix("0x")


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
    """What is before # and the ranges of numbers behind it."""
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
    """Another text in the place of a node's."""
    assert not isinstance(node, (list, dict))  # string() has let it through
    return type(node)(text, node.plain)


_HEX_ID = re.compile(r"(0x)?[0-9a-fA-F]{4}")
_HEX_HINT = 'write four hexadecimal digits in quotes, such as "15b3"'
_VENDOR = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_RANGES = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_RULE_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_. ]{0,62}")
_NAMESPACE = re.compile(r"[-a-z0-9*?]{1,63}")
_HANDLER = re.compile(r"[-A-Za-z0-9_.*?]{0,253}")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

_LABEL_VALUE = _one_or_more(_text(re.compile(r"[-A-Za-z0-9_.*?]{0,63}"), "write a label's value; * and ? are wild"))
_LIMITS = Form(
    rdma_limits,
    {
        "type": "object",
        "properties": {key: _number(1, 2**31 - 1).schema for key in LIMITS_KEYS},
        "additionalProperties": False,
        "minProperties": 1,
    },
)
_PERMISSIONS = frozenset({"modes", "char_kinds", "interface", "max_limits"})


def _interface_key(node: Node, where: str) -> str:
    value = string(node, where, f"write some of {listed(INTERFACE_KEYS)}")
    if value not in INTERFACE_KEYS:
        raise refused(where, f"{quoted(value)} is not allowed", f"write some of {listed(INTERFACE_KEYS)}")
    return value


# The keys

_NAME = _one_or_more(_text(KERNEL_NAME, "write the kernel's name of it"))

SELECTOR_KEYS = (
    Key("device", "device", _NAME, "RDMA device by name"),
    Key("netdev", "netdev", _one_or_more(Form(netdev_name, {"type": "string"})), "Netdev by name, on the host"),
    Key("pci", "pci", _one_or_more(Form(pci_address, {"type": "string"})), "PCI address of the function"),
    Key("vendor", "vendor", _one_or_more(Form(_hex_id, _pattern_schema(_HEX_ID))), "PCI vendor id"),
    Key("deviceID", "device_id", _one_or_more(Form(_hex_id, _pattern_schema(_HEX_ID))), "PCI device id"),
    Key("driver", "driver", _NAME, "Driver of the function"),
    Key(
        "pfName",
        "pf_name",
        _one_or_more(Form(_pf_name, {"type": "string"})),
        "Physical function by its netdev, with its virtual functions; NAME#0-3,7: only these virtual functions",
    ),
    Key(
        "rootDevice",
        "root_device",
        _one_or_more(Form(_root_device, {"type": "string"})),
        "PCI address: its function, its virtual functions and every function below it (ADDRESS#0-3,7: only these virtual"
        " functions); or a root complex: every function below it",
    ),
    Key("linkLayer", "link_layer", _one_or_more(_word(LinkLayer)), "Link layer of the first port"),
    Key("protocol", "protocol", _one_or_more(_word(Protocol)), "Protocol of the device"),
    Key(
        "pkey",
        "pkey",
        _one_or_more(
            Form(
                _pkey,
                {
                    "anyOf": [
                        {"type": "integer", "minimum": 1, "maximum": 0xFFFF},
                        {"type": "string", "pattern": "^0x[0-9a-fA-F]{1,4}$"},
                    ]
                },
            )
        ),
        "Partition of an InfiniBand port, with full or limited membership",
    ),
    Key("numaNode", "numa_node", _one_or_more(_number(0, 1023)), "NUMA node"),
    Key("speedGbps", "speed_gbps", _one_or_more(_number(1, 100_000)), "Speed of the fastest port now"),
    Key("minSpeedGbps", "min_speed_gbps", _number(1, 100_000), "Lowest speed of the fastest port now"),
)

_SELECTORS = Form(
    _selectors,
    {"anyOf": [{"$ref": "#/$defs/selector"}, _list_schema({"$ref": "#/$defs/selector"})]},
)

ADOPT_KEYS = (
    Key(
        "mode",
        "adopt",
        _word(Adopt),
        "observe: only report in status and trace; complete: also give the container memlock, limits and environment;"
        " enforce: also refuse a container with RDMA device nodes that were not allocated to it",
    ),
    Key(
        "memlock",
        "memlock",
        Form(memlock, {"anyOf": [{"enum": ["unlimited"]}, {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}]}),
        "RLIMIT_MEMLOCK of the container; default: the node's",
    ),
    Key("limits", "limits", _LIMITS, "Limits per device"),
)

POOL_KEYS = (
    Key(
        "select",
        "select",
        _SELECTORS,
        "Conditions on the pool's devices: all of a table, any of a list; default: all devices",
    ),
    Key("exclude", "exclude", _SELECTORS, "Devices that the pool does not have although `select` selects them"),
    Key("modes", "modes", _some(_word(Mode)), "Modes that the pool serves; the first is the default of requests"),
    Key("door", "door", _word(PoolDoor), "Interface through which pods ask for the pool"),
    Key(
        "requireIsolation",
        "requires_isolation",
        Form(boolean, {"type": "boolean"}),
        "Refuse requests if the node's kernel does not hide the device from other pods",
    ),
    Key("limits", "limits", _LIMITS, "Limits per device of requests without limits"),
    Key("maxLimits", "max_limits", _LIMITS, "Highest limits per device, also for requests without limits"),
)

RULE_KEYS = (
    Key(
        "name", "name", _text(_RULE_NAME, "use letters, digits, blanks, dots, - and _"), "Name of the rule in refusals"
    ),
    Key(
        "namespaces",
        "namespaces",
        _some(_text(_NAMESPACE, "write namespaces; * and ? are wild")),
        "Apply to pods of these namespaces",
    ),
    Key(
        "runtimeHandlers",
        "runtime_handlers",
        _some(_text(_HANDLER, 'write runtime handlers; "" is the default one, * and ? are wild')),
        "Apply to pods of these runtime handlers",
    ),
    Key(
        "podLabels",
        "pod_labels",
        Form(
            _labels,
            {"type": "object", "additionalProperties": _LABEL_VALUE.schema, "minProperties": 1},
        ),
        "Apply to pods that have all these labels, each with one of its values",
    ),
    Key("pools", "pools", _some(_text(POOL_NAME, POOL_NAME_HINT)), "Apply to these pools; default: all"),
    Key("allow", "allow", Form(boolean, {"type": "boolean"}), "`false` refuses the pods that the rule applies to"),
    Key("modes", "modes", _some(_word(Mode)), "Modes that the pods may ask for; default: all of the pool"),
    Key(
        "devices",
        "char_kinds",
        _set(_word(CharKind)),
        "Character devices that the pods may ask for; default: uverbs and rdma_cm",
    ),
    Key(
        "interface",
        "interface",
        _set(Form(_interface_key, {"enum": list(INTERFACE_KEYS)})),
        "Keys of `interface` that the pods may set; default: all",
    ),
    Key("maxLimits", "max_limits", _LIMITS, "Highest limits per device, also for requests without limits"),
)
