"""The grammar of pools and rules: the tables `pools`, `rules` and `adopt` of the configuration.

The tables of keys (nri_rdma.text.forms) at the end are the whole grammar: reading, JSON Schema and documentation are
derived from them. Values are read strictly: RequestError names the path of the wrong value, and the nearest known key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_rdma.errors import RequestError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.device import CharKind
from nri_rdma.model.edits import FABRIC_PREFIXES, OWN_VARIABLES
from nri_rdma.model.pool import (
    DEFAULT_POOL,
    HANDLER_CHARACTER,
    RESOURCE,
    DownPorts,
    Pool,
    PoolDoor,
    Rule,
    ShareGives,
    is_kubernetes_own,
)
from nri_rdma.model.request import Mode, Use
from nri_rdma.model.rights import DEFAULT_RIGHTS, InterfaceRight
from nri_rdma.model.userspace import UserspaceCheck
from nri_rdma.text.forms import (
    FLAG,
    Form,
    Key,
    any_of,
    list_schema,
    number,
    one_or_more,
    pattern_schema,
    read_keys,
    some,
    text_of,
    word_of,
)
from nri_rdma.text.nodes import Node, shown
from nri_rdma.text.refusals import bounded, listed, quoted, refused
from nri_rdma.text.requests import (
    LIMITS,
    LIMITS_KEYS,
    MEMLOCK,
    POOL_NAME,
    POOL_NAME_HINT,
)
from nri_rdma.text.selectors import read_selectors


def read_pools(node: Node, where: str = "pools") -> tuple[Pool, ...]:
    """Return the pools in the order in which they are written. Raises RequestError if a pool is wrong, or if two pools
    have equal conditions on devices or serve one resource."""
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of pools", "write [pools.NAME], or leave pools out")
    pools = tuple(_pool(name, item, f"{where}.{bounded(name)}") for name, item in node.items())
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if clash := _clash(pool, other):
                raise clash
    return pools


def read_each_pool(node: Mapping[str, Node], where: str = "pools") -> Mapping[str, Pool | RequestError]:
    """Return each pool by its name, or the error if the pool is wrong. Two pools that have equal conditions on devices
    or serve one resource both get an error."""
    found: dict[str, Pool | RequestError] = {}
    for name, item in node.items():
        try:
            found[name] = _pool(name, item, f"{where}.{bounded(name)}")
        except RequestError as error:
            found[name] = error
    pools = [it for it in found.values() if isinstance(it, Pool)]
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            if clash := _clash(pool, other):
                found[pool.name] = found[other.name] = clash
    return found


def _clash(pool: Pool, other: Pool) -> RequestError | None:
    """Return the error for two pools that cannot exist together, because their conditions on devices are equal, or
    because both serve one resource; None if they can exist together."""
    if (set(pool.select), set(pool.exclude)) == (set(other.select), set(other.exclude)):
        what = f"it has the same devices as {other.where}, and a device is in one pool only"
        return refused(pool.where, what, "give them different select or exclude, or make them one pool")
    if pool.resource and pool.resource == other.resource:
        what = f"{pool.resource} is the resource of {other.where}"
        return refused(f"{pool.where}.resource", what, "choose another, or make them one pool")
    return None


def read_rules(node: Node, where: str = "rules") -> tuple[Rule, ...]:
    """Return the rules in the order in which they are applied. Raises RequestError if a rule is wrong, or if two rules
    have one name."""
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
    """Raise RequestError for a rule that names a pool that does not exist, or a mode that none of its pools serves."""
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
    """Read the table `adopt`: what nri-rdma does with RDMA devices that other programs gave to containers. Raises
    RequestError for wrong keys or values."""
    found = read_keys(node, where, (*ADOPT_KEYS, VENDORS))
    vendors = found.pop("vendors", {})
    return Adoption(others=VendorAdoption(**found), vendors=vendors)


def _vendors(node: Node, where: str) -> Mapping[str, VendorAdoption]:
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of vendors", 'write [adopt.vendors."vendor.example.com"]')
    for name in node:
        if not _VENDOR.fullmatch(name):
            hint = "write the part of a CDI device's name that is before the slash"
            raise refused(where, f"{quoted(name)} is no vendor's name", hint)
    return {name: VendorAdoption(**read_keys(item, f"{where}.{name}", ADOPT_KEYS)) for name, item in node.items()}


# Tables


_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A name of an object of Kubernetes: a DNS subdomain (RFC 1123)."""


def _pool(name: str, node: Node, where: str) -> Pool:
    if not POOL_NAME.fullmatch(name):
        raise refused(where, f"{quoted(name)} is not allowed", POOL_NAME_HINT)
    fields = read_keys(node, where, POOL_KEYS)
    pool = Pool(name=name, where=where, **fields)
    _refuse_half_a_resource(pool, fields)
    if pool.door is PoolDoor.CLAIMS and not _OBJECT_NAME.fullmatch(name):
        what = f"with door = claims its name is that of a DeviceClass, and {quoted(name)} is none"
        raise refused(where, what, "write lower case letters, digits, - and ., with a letter or digit at both ends")
    if pool.requires_isolation and Mode.SHARED in pool.modes:
        what = "a device in mode shared cannot be hidden from other pods"
        raise refused(f"{where}.requireIsolation", what, 'write modes = ["exclusive"], or leave requireIsolation out')
    _refuse_defaults_above_maxima(pool)
    return pool


def _refuse_half_a_resource(pool: Pool, fields: Mapping[str, object]) -> None:
    if pool.door is not PoolDoor.RESOURCE:
        for key in ("resource", "shares", "gives"):
            if key in fields:
                what = f"pool {pool.name} is asked through {pool.door}"
                raise refused(f"{pool.where}.{key}", what, 'write door = "resource", or leave it out')
        return
    gives_devices = pool.gives is ShareGives.DEVICE
    if gives_devices and "shares" in fields:
        what = "with gives = device the node has as many of the resource as the pool has devices"
        raise refused(f"{pool.where}.shares", what, 'leave it out, or write gives = "one"')
    for key, example in (("resource", '"rdma/rdma_shared_device_a"'), ("shares", "64")):
        if key not in fields and not (key == "shares" and gives_devices):
            raise refused(pool.where, f"{key} is missing, with door = resource", f"write such as {key} = {example}")
    if is_kubernetes_own(pool.resource):
        raise refused(f"{pool.where}.resource", f"{pool.resource} is Kubernetes' own", "choose another prefix")
    if len(pool.name) > MAX_SHARED_NAME:
        raise refused(pool.where, f"{pool.name} is longer than {MAX_SHARED_NAME} characters", "choose a shorter name")
    if not pool.name[-1].isalnum():  # the pool's name is the name of a CDI device, too
        raise refused(pool.where, f"{pool.name} does not end with a letter or digit", "choose another name")
    if pool.modes != (Mode.SHARED,) and not gives_devices:
        raise refused(f"{pool.where}.modes", "the devices of shares are always shared", 'write modes = ["shared"]')


def _refuse_defaults_above_maxima(pool: Pool) -> None:
    for key in LIMITS_KEYS:
        default, most = getattr(pool.limits, key.field, None), getattr(pool.max_limits, key.field, None)
        if default is not None and most is not None and default > most:
            what = f"{default} is above maxLimits.{key.name}, {most}"
            raise refused(f"{pool.where}.limits.{key.name}", what, "lower it")


def read_rule(node: Node, where: str, number: int) -> Rule:
    """Return one rule. `number` is its position in the list, from 1; it is the name of a rule that has none. Raises
    RequestError for wrong keys or values."""
    fields = {"name": str(number), **read_keys(node, where, RULE_KEYS)}
    rule = Rule(where=where, **fields)
    if not rule.allow:
        for key in RULE_KEYS:
            if key.field in fields and key.field in _PERMISSIONS:
                raise refused(f"{where}.{key.name}", "a rule with allow = false permits nothing", "leave it out")
    return rule


def _labels(node: Node, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of labels", 'write { team = "ml" }')
    for key in node:
        if not _LABEL_KEY.fullmatch(key):
            raise refused(where, f"{quoted(key)} is no label's key", "write it as in the pod, such as example.com/team")
    return tuple((key, _LABEL_VALUE.read(item, f"{where}.{key}")) for key, item in node.items())


def _variables(node: Node, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(node, dict):
        raise refused(where, f"{shown(node)} is no table of variables", 'write { NCCL_IB_TC = "106" }')
    if not node:
        raise refused(where, "the table is empty", "leave it out")
    for name in node:
        if not _VARIABLE.fullmatch(name):
            what = f"{quoted(name)} is no variable of a fabric"
            raise refused(where, what, f"write names that begin with {listed(FABRIC_PREFIXES)}")
        if name in OWN_VARIABLES:
            raise refused(f"{where}.{name}", "nri-rdma sets this variable for each container", "leave it out")
    return tuple((name, _VARIABLE_VALUE.read(item, f"{where}.{name}")) for name, item in node.items())


# Values


_VENDOR = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
MAX_SHARED_NAME = 52
"""The longest name of a pool with door = resource: it is part of a socket's path, for which Linux allows 107 bytes."""
MAX_SHARES = 10_000
"""The most shares of a pool. The kubelet keeps the id of each share in its list of devices."""
_RULE_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_. ]{0,62}")
_NAMESPACE = re.compile(r"[-a-z0-9*?]{1,63}")
_HANDLER = re.compile(f"{HANDLER_CHARACTER}{{0,253}}")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

_LABEL_VALUE = one_or_more(text_of(re.compile(r"[-A-Za-z0-9_.*?]{0,63}"), "write a label's value; * and ? are wild"))
_VARIABLE = re.compile(f"({'|'.join(FABRIC_PREFIXES)})[A-Z0-9_]{{1,100}}")
_VARIABLE_VALUE = text_of(re.compile(r"[ -~]{0,1000}"), "write a text in quotes, without line breaks")
_PERMISSIONS = frozenset({"modes", "char_kinds", "interface", "max_limits"})

# The keys

_SELECTORS = Form(
    read_selectors,
    {"anyOf": [{"$ref": "#/$defs/selector"}, list_schema({"$ref": "#/$defs/selector"})]},
)

ADOPT_KEYS = (
    Key(
        "mode",
        "adopt",
        word_of(Adopt),
        "observe: in status and trace only; complete: the container also gets memlock, limits and environment; enforce:"
        " and one with RDMA device nodes that nobody allocated to it is refused",
    ),
    Key(
        "memlock",
        "memlock",
        MEMLOCK,
        "RLIMIT_MEMLOCK of the container; default: the node's",
    ),
    Key("limits", "limits", LIMITS, "Limits per device"),
)
VENDORS = Key(
    "vendors",
    "vendors",
    Form(_vendors, {"type": "object", "additionalProperties": {"$ref": "#/$defs/adoption"}, "minProperties": 1}),
    "The same for the CDI devices of these vendors",
)

POOL_KEYS = (
    Key(
        "select",
        "select",
        _SELECTORS,
        "Conditions on the pool's devices: all of a table, any of a list; default: all devices",
    ),
    Key("exclude", "exclude", _SELECTORS, "Devices to leave out of the pool, even if `select` matches them"),
    Key(
        "modes",
        "modes",
        some(word_of(Mode)),
        "What it serves; required. The first is for requests that name none",
        required='write modes = ["shared"], or ["exclusive", "shared"]',
    ),
    Key(
        "door",
        "door",
        word_of(PoolDoor),
        "What it is asked through: annotations of pods, a resource of containers, or claims (ResourceClaims);"
        " default: annotations",
    ),
    Key(
        "resource",
        "resource",
        text_of(RESOURCE, "write PREFIX/NAME such as rdma/rdma_shared_device_a"),
        "With door resource: what containers ask for",
    ),
    Key(
        "shares",
        "shares",
        number(1, MAX_SHARES),
        "With door resource and gives one or all: how many of it the node has",
    ),
    Key(
        "gives",
        "gives",
        word_of(ShareGives),
        "What a share gives: one, the best aligned device; all, every device of the pool; device: there are no shares,"
        " each device of the pool is one of the resource and has one owner; default: one",
    ),
    Key(
        "downPorts",
        "down_ports",
        word_of(DownPorts),
        "Devices without an active port: last, given when there is no other; refuse, given to nobody; default: last",
    ),
    Key(
        "requireIsolation",
        "requires_isolation",
        FLAG,
        "Refuse a node whose kernel does not hide the device from others",
    ),
    Key(
        "userspace",
        "userspace",
        word_of(UserspaceCheck),
        "The `userspace` of requests that name none ([requests.md](requests.md#libraries-of-the-image));"
        " default: check",
    ),
    Key("use", "use", word_of(Use), "The `use` of requests that name none ([requests.md](requests.md#variables))"),
    Key("prove", "prove", FLAG, "The `prove` of requests that do not say it ([gate.md](gate.md)); default: false"),
    Key(
        "roceVersion",
        "roce_version",
        number(1, 2),
        "The `roceVersion` of requests that name none ([requests.md](requests.md#which-gid))",
    ),
    Key(
        "env",
        "env",
        Form(
            _variables,
            {
                "type": "object",
                "propertyNames": pattern_schema(_VARIABLE),
                "additionalProperties": _VARIABLE_VALUE.schema,
                "minProperties": 1,
            },
        ),
        "Variables of the fabric for the containers that get devices of the pool"
        " ([requests.md](requests.md#variables)): names that begin with `NCCL_`, `UCX_`, `NVSHMEM_`, `FI_` or `MC_`,"
        " except those that nri-rdma sets itself (those that choose a [GID](requests.md#which-gid) are allowed)",
    ),
    Key("limits", "limits", LIMITS, "Limits per device for requests that name none"),
    Key("maxLimits", "max_limits", LIMITS, "Most that a request may have per device; what names no limit gets it"),
)

RULE_KEYS = (
    Key("name", "name", text_of(_RULE_NAME, "use letters, digits, blanks, dots, - and _"), "What refusals call it"),
    Key(
        "namespaces",
        "namespaces",
        some(text_of(_NAMESPACE, "write namespaces; * and ? are wild")),
        "For pods of these namespaces",
    ),
    Key(
        "runtimeHandlers",
        "runtime_handlers",
        some(text_of(_HANDLER, 'write runtime handlers; "" is the default one, * and ? are wild')),
        "For pods of these runtime handlers",
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
    Key("pools", "pools", some(text_of(POOL_NAME, POOL_NAME_HINT)), "About these pools; default: all"),
    Key("allow", "allow", FLAG, "false refuses whom it is for"),
    Key("modes", "modes", some(word_of(Mode)), "The modes they may ask for; default: all of the pool"),
    Key(
        "devices",
        "char_kinds",
        any_of(word_of(CharKind)),
        "The character devices they may ask for; default: uverbs and rdma_cm",
    ),
    Key(
        "interface",
        "interface",
        any_of(word_of(InterfaceRight)),
        "What they may say about their netdevs ([security.md](security.md)); default: "
        + ", ".join(sorted(DEFAULT_RIGHTS)),
    ),
    Key("maxLimits", "max_limits", LIMITS, "Most that they may have per device; what names no limit gets it"),
)
