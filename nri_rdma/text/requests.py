"""The grammar of a pod's requests: a list of requests, one request, or one word.

The tables of keys (nri_rdma.text.forms) at the end are the grammar of a request: reading, JSON Schema and documentation
are derived from them. This module checks each request by itself; nri_rdma.text.annotations checks the requests of a pod
together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any  # Any: fields of a request

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.device import CharKind, LinkLayer
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import (
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
    Use,
)
from nri_rdma.model.selector import Selector
from nri_rdma.model.userspace import UserspaceCheck
from nri_rdma.text.forms import (
    FLAG,
    Form,
    Key,
    StandsIn,
    given,
    list_schema,
    names_of,
    number,
    number_or,
    one_or_more,
    pattern_schema,
    read_keys,
    schema_of,
    some,
    some_of,
    table,
    text_of,
    word_of,
)
from nri_rdma.text.links import INTERFACE_ADDRESS, IPV6, IPV6_MTU, MAC, NETDEV, Address, interface_address, netdev_name
from nri_rdma.text.modefit import misfits
from nri_rdma.text.network import (
    ARP_IGNORE,
    ETHTOOL,
    NEIGHBOURS,
    OFFLOAD_SIZE,
    ROUTES,
    RULES,
    VRF,
    network_misfits,
)
from nri_rdma.text.nodes import Node, Scalar, shown
from nri_rdma.text.quantities import QUANTITY, bytes_of
from nri_rdma.text.reading import MappingErrors, Reader, core_value, each_read, list_of, mapping, word_or
from nri_rdma.text.refusals import Errors, listed, quoted, refuse_all, refused, unknown_key
from nri_rdma.text.selectors import (
    DEVICE_ID,
    KERNEL_NAME,
    PCI,
    PF_NAME,
    PKEY,
    PROTOCOL,
    SELECTOR_KEYS,
    SPEED,
    pci_address,
    read_selectors,
)
from nri_rdma.text.unsupported import unknown_request_key
from nri_rdma.text.yaml import read_yaml

MAX_COUNT = 1024
MAX_PER_GPU = 64


def read_requests(text: str, where: str, scope: Scope, *, own: bool) -> list[DeviceRequest]:
    """Return the requests in the text of an annotation. `own` is true for one container's list, and false for the pod's
    list. `scope` has the containers that the list is for. Raises RequestError if the text cannot be read.

    A request without a name gets "" as its name.
    """
    node = read_yaml(text, where)
    stands_in = StandsIn.CONTAINER if own else StandsIn.POD
    if node is None:
        return []
    if isinstance(node, list):
        return each_read(node, where, lambda item, place: _read(item, place, scope, stands_in))
    if isinstance(node, Scalar):
        return _one_word(node, where, scope)
    return [_read(node, where, scope, stands_in)]


def read_granted(text: str, where: str, name: str, count: int | None) -> DeviceRequest:
    """Return the request in the text of a CDI spec, for `count` devices (None: unknown) that another program has
    chosen. Raises RequestError if the text cannot be read.

    The request says how the containers get the devices, but not which devices. Its default name is `name`. An empty
    text gives a request with defaults.
    """
    node = read_yaml(text, where)
    request = _read({} if node is None else node, where, Scope(), StandsIn.CDI, count)
    return request if request.name else replace(request, name=name)


def read_parameters(node: Node, where: str, count: int | None) -> DeviceRequest:
    """Return the request in a claim's parameters, for `count` devices (None: unknown, or all). Raises RequestError if a
    parameter is wrong, or if parameters contradict each other."""
    return _read(node, where, Scope(), StandsIn.CLAIM, count)


def read_part(node: Node, where: str, count: int | None) -> DeviceRequest:
    """Return the request in one part of a claim's parameters, such as the part from the device class. Raises
    RequestError if a parameter is wrong; contradictions are not checked, because other parts may override parameters.
    `count` is the number of devices (None: unknown, or all)."""
    return _read(node, where, Scope(), StandsIn.CLAIM, count, is_whole=False)


def _one_word(word: Scalar, where: str, scope: Scope) -> list[DeviceRequest]:
    value = word.value
    if value is None:
        return []
    if word.text.isascii() and word.text.isdecimal():
        return [DeviceRequest(name="", where=where, count=NUMBER_OF_DEVICES.read(word, where), scope=scope, word=True)]
    if not isinstance(value, str) or not POOL_NAME.fullmatch(value):
        what = f"{shown(word)} is neither a count nor a pool's name"
        raise refused(where, what, "write a number from 1, the name of a pool, or a list of requests")
    return [DeviceRequest(name="", where=where, pool=value, scope=scope, word=True)]


def _read(
    node: Node, where: str, scope: Scope, stands_in: StandsIn, count: int | None = 1, *, is_whole: bool = True
) -> DeviceRequest:
    """Return the request in a mapping that is written in the place `stands_in`. `count` is its number of devices,
    unless the mapping has one (None: unknown, or all). Raises RequestError for wrong keys; also for contradictions
    between keys, but only if `is_whole`, that is, if the mapping is the whole request."""
    refuse_all(
        refused(f"{where}.{name}", _WHY_REFUSED[stands_in], hint)
        for name, hint in _REFUSED[stands_in]
        if isinstance(node, dict) and name in node
    )
    errors = Errors()
    written = mapping(node, where, _NAMES[stands_in], errors, MappingErrors(_unknown_key))
    first: dict[str, Any] = {"count": count, "scope": scope, **given(written, where, _FIRST, errors)}
    first["scope"] = Scope(only=first["scope"].only, but=scope.but)
    if first["count"] == _FREE:
        first |= {"count": None, "if_free": True}
    if "per_gpu" in first:
        if "count" in written:
            errors.add(refused(f"{where}.perGPU", "count says it already", "write one of count and perGPU"))
        first["count"] = None
    rest = given(written, where, _REST, errors, first["count"])
    errors.refuse()
    request = DeviceRequest(**{"name": "", "where": where, **first, **rest})
    if is_whole:
        refuse_all(_misfits(request))
    return request


def _unknown_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Return the error for a key that a request does not have. If it is a key of a mapping in the request or of pools,
    the error says so."""
    for inner, keys in (("match", MATCH_KEYS), ("align", ALIGN_KEYS), ("interface", INTERFACE_KEYS)):
        if key in names_of(keys) and inner in known:
            first = "to: gpu, " if inner == "align" and key != "to" else ""
            return _misplaced(key, f"a key of {inner}", f"write it there: {inner}: {{{first}{key}: ...}}", where)
    if key in POOL_ALONE and "pool" in known:
        instead = "write it into env of the container" if key == "env" else "leave it out"
        hint = f"{instead}, or ask for a pool of the node that has it (pool: NAME); the keys are {listed(known)}"
        return _misplaced(key, "for pools only", hint, where)
    return unknown_request_key(key, known, where)


def _unknown_match_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Return the error for a key that `match` does not have. If it is a key of the request, or pools can select devices
    by it, the error says so."""
    if key in names_of(SELECTOR_KEYS):
        hint = f"ask for a pool of the node whose select has it (pool: NAME); the keys here are {listed(known)}"
        return _misplaced(key, "for pools only", hint, where)
    if key in names_of(REQUEST_KEYS):
        return _misplaced(key, "a key of the request", "write it one level up, beside match", where)
    return unknown_key(key, known, where)


def _unknown_interface_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Return the error for a key that `interface` does not have. If it is a key of the request, the error says so."""
    if key in names_of(REQUEST_KEYS):
        return _misplaced(key, "a key of the request", "write it one level up, beside interface", where)
    return unknown_request_key(key, known, where)


def _misplaced(key: str, whose: str, hint: str, where: str) -> RequestError:
    what = f"{quoted(key)} is {whose}"
    return RequestError(ErrorCode.ANNOTATION_UNKNOWN_KEY, what, where=where, hint=hint, key=key)


def _misfits(request: DeviceRequest) -> Iterator[RequestError]:
    """Yield an error for each contradiction between the keys of a request."""
    where = request.where
    mtu, addresses = request.interface.mtu, request.interface.addresses
    if mtu is not None and mtu < IPV6_MTU and any(it.version == IPV6 for own in addresses for it in own):
        what = f"{mtu} is too small for the IPv6 addresses of interface.addresses"
        yield refused(f"{where}.interface.mtu", what, f"write {IPV6_MTU} or more, or leave the IPv6 addresses out")
    yield from network_misfits(request)
    if request.admin_access and request.mode is not Mode.SHARED:
        what = "with adminAccess the pod gets device nodes only, and others may have the device"
        yield refused(f"{where}.adminAccess", what, "write mode: shared beside it")
    if request.prove and CharKind.UVERBS not in request.char_kinds:
        what = "without the device nodes uverbs nothing can be proven"
        yield refused(f"{where}.prove", what, "write uverbs into devices, or leave prove out")
    if request.prove and request.admin_access:
        what = "with adminAccess the pod creates nothing on the device"
        yield refused(f"{where}.prove", what, "leave it out")
    if request.per_gpu is not None and request.align is not None and request.align.to is AlignTo.NONE:
        what = "perGPU needs the number of GPUs, which is unknown with align: none"
        yield refused(f"{where}.perGPU", what, "write count, or another align")
    if request.mode is not None:  # otherwise the pool decides the mode
        yield from misfits(request, request.mode)


# Mappings


def _align(node: Node, where: str) -> Align:
    if not isinstance(node, dict):
        return Align(to=_ALIGN_TO.read(node, where))
    align = Align(**read_keys(node, where, ALIGN_KEYS))
    if align.strict and align.to is AlignTo.NONE:
        raise refused(where, "strict needs something to be near to", "write to: gpu or to: numa, or strict: false")
    return align


def _limits(node: Node, where: str) -> RdmaLimits:
    limits = RdmaLimits(**read_keys(node, where, LIMITS_KEYS))
    if limits == RdmaLimits():
        raise refused(where, "there is no limit in it", f"give at least one of {listed(names_of(LIMITS_KEYS))}")
    return limits


def _containers(node: Node, where: str) -> Scope:
    return Scope(only=frozenset(_LABELS.read(node, where)))


# Values

POOL_NAME = re.compile(r"[A-Za-z][-A-Za-z0-9_.]{0,62}")
POOL_NAME_HINT = "name a pool: a letter, then letters, digits, dots, - and _"
_VENDOR = re.compile(r"(0x)?([0-9a-fA-F]{4})")


def _macs_for(count: int | None) -> Reader[tuple[str, ...]]:
    """Return a function that reads the MACs of `count` devices: one MAC for one device, a list of `count` MACs for
    more. It raises RequestError if `count` is None (unknown)."""

    def read(node: Node, where: str) -> tuple[str, ...]:
        if count == 1:
            return (MAC.read(node, where),)
        if count is None:
            raise refused(where, "hardwareAddr needs a known number of devices", "write the number: count: N")
        if not isinstance(node, list) or len(node) != count:
            what = f"{count} devices cannot share a MAC"
            raise refused(where, what, f"write a list of {count} MACs, one per device")
        return list_of(MAC.read)(node, where)

    return read


def _gpu(node: Node, where: str) -> PciAddress:
    """Read the PCI address of a GPU. If the text is another name of a GPU, the error's hint says what to write
    instead."""
    name = node.text if isinstance(node, Scalar) else ""
    for pattern, what in _GPU_NAMES:
        if pattern.fullmatch(name):
            raise refused(where, f"{shown(node)} is {what} of a GPU, and gpus takes PCI addresses", _GPU_HINT)
    return pci_address(node, where)


_GPU_NAMES = ((re.compile(r"[0-9]{1,4}"), "the index"), (re.compile(r"(?:MIG-)?GPU-.+|MIG-.+"), "the UUID"))
_GPU_HINT = (
    "leave gpus out if the GPUs come from a device plugin or a claim: the kubelet reports which they are; else write"
    " addresses such as 0000:1b:00.0 (nvidia-smi --query-gpu=pci.bus_id --format=csv)"
)


def _memlock(node: Node, where: str) -> int:
    """Read a number of bytes, or a quantity such as 512Mi."""
    text = core_value(node)
    number = bytes_of(text) if isinstance(text, str) else None
    if number is not None and 0 < number <= _MOST_MEMLOCK:
        return number
    whole_number: int = _MEMLOCK_BYTES.read(node, where)
    return whole_number


def _vendor(node: Node, where: str) -> str:
    """Read four hexadecimal digits as they are written: YAML takes ``14e4`` for a float, ``8086`` for an int, ``15b3``
    for a text."""
    found = _VENDOR.fullmatch(getattr(node, "text", ""))
    if found is None:
        raise refused(where, f"{shown(node)} is not a vendor", "write its four hexadecimal digits, such as 15b3")
    return found[2].lower()


def _exclude(node: Node, where: str) -> tuple[Selector, ...]:
    return read_selectors(node, where, _EXCLUDE_KEYS)


def _any_of(form: Form) -> Form:
    """Return a Form (reader and JSON Schema) for one value, or for a list of values of which any may match. `form` is
    the Form of one value."""
    several = list_of(form.read)

    def read(node: Node, where: str) -> object:
        return several(node, where) if isinstance(node, list) else form.read(node, where)

    return Form(read, {"anyOf": [form.schema, list_schema(form.schema)]})


def _name_template_for(count: int | None) -> Reader[str]:
    """Return a function that reads the name of a netdev for `count` devices (None: unknown, or all).

    For more than one device the name must contain ``%d``, in place of which each netdev gets a number. The number has
    at most two digits, so that a finished name is never longer than the name with ``%d``.
    """

    def read(node: Node, where: str) -> str:
        name = netdev_name(node, where)
        if name.count("%") != name.count("%d") or name.count("%") > 1:
            raise refused(where, f"{quoted(name)} has a % that is not its only %d", "write at most one %, as %d")
        if count != 1 and "%d" not in name:
            number = "several" if count is None else count
            what = f"{quoted(name)} is one name, but the request is for {number} devices"
            raise refused(where, what, "write %d where the number goes, such as rdma%d")
        return name

    return read


def _addresses_for(count: int | None) -> Reader[tuple[tuple[Address, ...], ...]]:
    """Return a function that reads the addresses of `count` devices: one list for one device, a list of `count` lists
    for more. It raises RequestError if `count` is None (unknown)."""

    def read(node: Node, where: str) -> tuple[tuple[Address, ...], ...]:
        if count == 1:
            return (_FLAT(node, where),)
        if count is None:
            raise refused(where, "addresses need a known number of devices", "write the number: count: N")
        if not isinstance(node, list) or len(node) != count or not all(isinstance(item, list) for item in node):
            what = f"{count} devices cannot share a list of addresses"
            raise refused(where, what, f"write {count} lists, one per device, such as [[10.0.0.2/24], [10.0.1.2/24]]")
        return tuple(_FLAT(item, f"{where}[{index}]") for index, item in enumerate(node))

    return read


_FLAT = list_of(interface_address)


# Forms

NUMBER_OF_DEVICES = number(1, MAX_COUNT)
_FREE = "free"
_COUNT = number_or(
    {"all": None, _FREE: _FREE},
    number(1, MAX_COUNT, hint=f"write a whole number from 1 to {MAX_COUNT}, or all, or free"),
)
_MEMLOCK_HINT = "write unlimited, a number of bytes, or a quantity such as 512Mi"
_MOST_MEMLOCK = 2**63 - 1
_MEMLOCK_BYTES = number(1, _MOST_MEMLOCK, hint=_MEMLOCK_HINT)
MEMLOCK = Form(
    word_or("unlimited", UNLIMITED, _memlock),
    {"anyOf": [{"enum": ["unlimited"]}, _MEMLOCK_BYTES.schema, pattern_schema(QUANTITY)]},
)
_LABEL = text_of(LABEL, LABEL_HINT)
_LABELS = some(_LABEL)
_ALIGN_TO = word_of(AlignTo)
_LIMIT = number(1, 2**31 - 1)  # the kernel reads an int
_ADDRESS_LIST = list_schema(INTERFACE_ADDRESS.schema)

# The keys

_VENDOR_SCHEMA = {"anyOf": [pattern_schema(_VENDOR), {"type": "number", "minimum": 0}]}  # 8086 is a number

_VENDOR_FORM = Form(_vendor, _VENDOR_SCHEMA)
_EXCLUDE_KEYS = tuple(
    replace(key, form=one_or_more(_VENDOR_FORM)) if key.name == "vendor" else key for key in SELECTOR_KEYS
)
_SELECTOR = {**schema_of(_EXCLUDE_KEYS), "minProperties": 1}

MATCH_KEYS = (
    Key(
        "device",
        "device",
        _any_of(text_of(KERNEL_NAME, "write an RDMA device's name such as mlx5_0")),
        "RDMA device by name",
    ),
    Key("netdev", "netdev", _any_of(NETDEV), "Netdev by name, on the host"),
    Key("pci", "pci", _any_of(PCI), "PCI address of the function"),
    Key(
        "vendor",
        "vendor",
        _any_of(_VENDOR_FORM),
        "PCI vendor id, four hexadecimal digits",
    ),
    Key("deviceID", "device_id", DEVICE_ID, "PCI device id, four hexadecimal digits in quotes"),
    Key(
        "driver",
        "driver",
        _any_of(text_of(KERNEL_NAME, "write a driver's name such as mlx5_core")),
        "Driver of the function",
    ),
    Key("pfName", "pf_name", PF_NAME, "Virtual functions of a physical one, by its netdev; NAME#0-3,7: these only"),
    Key("linkLayer", "link_layer", _any_of(word_of(LinkLayer)), "Link layer of the first port"),
    Key("protocol", "protocol", PROTOCOL, "What the device speaks"),
    Key("pkey", "pkey", PKEY, "Partition of an InfiniBand port, such as 0x8001"),
    Key("numaNode", "numa_node", _any_of(number(0, 1023)), "NUMA node"),
    Key("minSpeedGbps", "min_speed_gbps", SPEED, "Least speed of the fastest port now", unit="Gbit/s"),
    Key(
        "exclude",
        "exclude",
        Form(_exclude, {"anyOf": [_SELECTOR, list_schema(_SELECTOR)]}),
        "Not these devices: conditions as in `match`, or a list of such, of which none may hold",
    ),
)

ALIGN_KEYS = (
    Key(
        "to",
        "to",
        _ALIGN_TO,
        "What the devices shall be near to",
        default="needed",
        required="write {to: gpu} or {to: numa}",
    ),
    Key(
        "strict",
        "strict",
        FLAG,
        "Refuse what is farther: with `gpu` what is not below the root complex of a GPU (NODE or SYS in the words of"
        " `nvidia-smi topo -m`), with `numa` what is on other NUMA nodes",
    ),
)

INTERFACE_KEYS = (
    Key(
        "name",
        "name",
        Form(_name_template_for(1), NETDEV.schema, read_for=_name_template_for),
        "Name in the pod, at most 15 characters; with `count` > 1 it holds a `%d`, which a number replaces",
        default="`rdma%d`",
    ),
    Key("mtu", "mtu", number(68, 65535), "MTU in the pod", default="as on the host", unit="bytes"),
    Key(
        "addresses",
        "addresses",
        Form(
            _addresses_for(1),
            {"anyOf": [_ADDRESS_LIST, {"type": "array", "items": _ADDRESS_LIST, "minItems": 1}]},
            read_for=_addresses_for,
        ),
        "Addresses with their prefix lengths; with `count` > 1 a list per device, in the order of `gpus`",
        default="those that it has on the host",
    ),
    Key(
        "inherit",
        "inherit",
        FLAG,
        "Whether it takes along what it has on the host: addresses, routes, permanent neighbours, and the rules that"
        " concern it; `addresses` replaces the addresses only",
        default="true",
    ),
    Key(
        "hardwareAddr",
        "macs",
        Form(_macs_for(1), {"anyOf": [MAC.schema, list_schema(MAC.schema)]}, read_for=_macs_for),
        "MAC in the pod; with `count` > 1 a list, one per device",
        default="as on the host",
    ),
    *(
        Key(f"{name}MaxSize", field, OFFLOAD_SIZE, f"{what} in the pod", default="as on the host", unit="bytes")
        for name, field, what in (
            ("gso", "gso_max_size", "Largest packet that the netdev is given to cut up (GSO)"),
            ("gro", "gro_max_size", "Largest packet that received ones are put together to (GRO)"),
            ("gsoIPv4", "gso_ipv4_max_size", "`gsoMaxSize` of IPv4"),
            ("groIPv4", "gro_ipv4_max_size", "`groMaxSize` of IPv4"),
        )
    ),
    Key(
        "disableEbpfPrograms",
        "disables_ebpf",
        FLAG,
        "Detach the eBPF programs that the host attached to the netdev by TCX. They do not come back. A netdev with "
        "filters of TC does not move, whatever this says",
    ),
    Key(
        "forwarding",
        "forwarding",
        FLAG,
        "Whether the pod forwards packets that arrive at the netdev, IPv4 and IPv6",
        default="the pod's",
    ),
    Key(
        "arpIgnore",
        "arp_ignore",
        ARP_IGNORE,
        "The netdev's sysctl `arp_ignore`: 1 answers ARP only for addresses of the netdev itself",
        default="the pod's",
    ),
    Key(
        "arpAnnounce",
        "arp_announce",
        number(0, 2),
        "The netdev's sysctl `arp_announce`: 2 asks only with an address of the netdev itself",
        default="the pod's",
    ),
    Key("enableIPv6", "enable_ipv6", FLAG, "Whether the netdev has IPv6 in the pod", default="the pod's"),
    Key(
        "vrf",
        "vrf",
        VRF,
        "VRF of the pod that the netdev is in, and its addresses and routes with it; not together with `rules`",
        default="none",
    ),
)

LIMITS_KEYS = (
    Key("hcaHandles", "hca_handles", _LIMIT, "Most handles of a device", default="the pool's, or none"),
    Key("hcaObjects", "hca_objects", _LIMIT, "Most objects of a device", default="the pool's, or none"),
)
LIMITS = Form(_limits, {**schema_of(LIMITS_KEYS), "minProperties": 1}, LIMITS_KEYS, RdmaLimits)


def _chosen(claim: str) -> Mapping[StandsIn, str]:
    """Return the `refused_in` of a key that chooses devices. CDI specs and claims must not have such a key, because the
    devices are chosen there in another way. `claim` names the field of a claim that takes the key's place."""
    return {
        StandsIn.CDI: "leave {key} out",
        StandsIn.CLAIM: f"leave it out, and write it as the claim does: {claim}",
    }


_BY_CLAIM = "leave it out, and ask by a claim with adminAccess: true"
COUNT = Key(
    "count",
    "count",
    _COUNT,
    "How many devices; `all`: every one of the pool that matches, or the pod is refused; `free`: those of them that are"
    " free now, and at least one",
    refused_in=_chosen("in count or allocationMode of the request"),
)
PER_GPU = Key(
    "perGPU",
    "per_gpu",
    number(1, MAX_PER_GPU),
    "So many devices for each GPU of the containers, instead of `count`; refused where no GPU is known",
    refused_in=_chosen("in count of the request"),
)
CONTAINERS = Key(
    "containers",
    "scope",
    Form(_containers, _LABELS.schema),
    "Containers that get the device nodes; a netdev is visible in the whole pod",
    default="every container",
    refused_in={
        StandsIn.CONTAINER: "leave it out, or move the request to the pod's list",
        **_chosen("in resources.claims of the containers"),
    },
)
REQUEST_KEYS = (
    Key(
        "name",
        "name",
        _LABEL,
        "Label of the request in environment, traces and errors",
        default="the request's number; of a CDI device, its name",
    ),
    Key(
        "pool",
        "pool",
        text_of(POOL_NAME, POOL_NAME_HINT),
        "Pool of the node: the devices come from it, and its modes and the node's rules count",
        refused_in=_chosen("in deviceClassName"),
    ),
    Key(
        "match",
        "match",
        table(Match, MATCH_KEYS, MappingErrors(_unknown_match_key)),
        "Conditions on the device, all of them",
        default="none",
        refused_in=_chosen("in selectors of the request"),
    ),
    COUNT,
    PER_GPU,
    CONTAINERS,
    Key(
        "align",
        "align",
        Form(
            _align,
            {"anyOf": [_ALIGN_TO.schema, schema_of(ALIGN_KEYS, Align)]},
            ALIGN_KEYS,
            Align,
        ),
        "What the devices shall be near to",
        default="`gpu` when GPUs of the pod are known",
        refused_in=_chosen("in constraints of the claim"),
    ),
    Key(
        "gpus",
        "gpus",
        some(Form(_gpu, PCI.schema)),
        "PCI addresses of the pod's GPUs; only needed where the kubelet does not report them",
        default="none",
        refused_in=_chosen("in constraints of the claim"),
    ),
    Key(
        "mode",
        "mode",
        word_of(Mode),
        "`exclusive`: this pod alone, the netdev moves in; `shared`: device nodes, others may have it too",
        default="the pool's first",
    ),
    Key(
        "isolation",
        "isolation",
        word_of(Isolation),
        "`hard`: refused where the kernel's setting rdmaNetns is not `exclusive`, so that other pods could see and open"
        " the device; only with `mode: exclusive`",
    ),
    Key(
        "use",
        "use",
        word_of(Use),
        "`storage`: the variables for NCCL and UCX leave the devices out",
        default="the pool's, else `compute`",
    ),
    Key(
        "prove",
        "prove",
        FLAG,
        "Whether a container only starts when RDMA works in it: each device moves data to itself first"
        " ([gate.md](gate.md))",
        default="the pool's, else false",
    ),
    Key(
        "userspace",
        "userspace",
        word_of(UserspaceCheck),
        "`check`: the libraries for RDMA in the container's image are compared with the node's driver before it starts,"
        " and a misfit is told; `off`: they are not ([requests.md](requests.md#libraries-of-the-image))",
        default="the pool's, else `check`",
    ),
    Key(
        "roceVersion",
        "roce_version",
        number(1, 2),
        "Version of RoCE whose GIDs are chosen; 1 is not routed, and for fabrics that know no other",
        default="the pool's, else 2",
    ),
    Key(
        "interface",
        "interface",
        table(InterfaceConfig, INTERFACE_KEYS, MappingErrors(_unknown_interface_key)),
        "How the netdev looks in the pod; only with `mode: exclusive`",
    ),
    Key(
        "routes",
        "routes",
        ROUTES,
        "Routes in the pod; only with `mode: exclusive`. With `count` > 1 each is for the device whose addresses reach"
        " its gateway",
        default="none",
    ),
    Key(
        "rules",
        "rules",
        RULES,
        "Rules of the pod's routing policy; only with `mode: exclusive`. One without `source` and `destination` is for"
        " IPv4 and IPv6",
        default="none",
    ),
    Key(
        "neighbors",
        "neighbours",
        NEIGHBOURS,
        "Neighbours whose MAC nobody asks for; only with `mode: exclusive`. With `count` > 1 each is for the device"
        " whose addresses reach it",
        default="none",
    ),
    Key(
        "ethtool",
        "ethtool",
        ETHTOOL,
        "What `ethtool` sets; only with `mode: exclusive`. Undone when the netdev returns",
        default="nothing",
    ),
    Key(
        "devices",
        "char_kinds",
        some_of(CharKind),
        "Character devices; `umad` and `issm` send fabric management datagrams and need the node's policy",
    ),
    Key("memlock", "memlock", MEMLOCK, "RLIMIT_MEMLOCK of the containers", default="the node's setting", unit="bytes"),
    Key(
        "limits",
        "limits",
        LIMITS,
        "Limits of the rdma cgroup per device; needs cgroup v2",
    ),
    Key(
        "adminAccess",
        "admin_access",
        FLAG,
        "Device nodes for monitoring only, in `mode: shared`. It does not matter who has the devices, and the"
        " container does not become their owner",
        refused_in={
            StandsIn.POD: _BY_CLAIM,
            StandsIn.CONTAINER: _BY_CLAIM,
            StandsIn.CLAIM: "leave it out, and write adminAccess: true into the request of the claim",
        },
    ),
)
POOL_ALONE = ("door", "downPorts", "env", "gives", "maxLimits", "requireIsolation", "resource", "shares")
"""The keys that pools have and requests do not."""
_NAMES: Mapping[StandsIn, tuple[str, ...]] = {
    place: tuple(key.name for key in REQUEST_KEYS if place not in key.refused_in) for place in StandsIn
}
"""By place: the keys that a request may have there."""
_FIRST = (COUNT, PER_GPU, CONTAINERS)
"""The keys that are read before the others: how `interface` is read depends on the number of devices."""
_REST = tuple(key for key in REQUEST_KEYS if key not in _FIRST)
_REFUSED: Mapping[StandsIn, tuple[tuple[str, str], ...]] = {
    place: tuple(
        (key.name, key.refused_in[place].format(key=key.name)) for key in REQUEST_KEYS if place in key.refused_in
    )
    for place in StandsIn
}
"""By place: the keys that a request may not have there, with their hints."""
_WHY_REFUSED: Mapping[StandsIn, str] = {
    StandsIn.POD: "only a claim can ask for it, and Kubernetes allows that in some namespaces only",
    StandsIn.CONTAINER: "this list belongs to one container already",
    StandsIn.CDI: "its devices are chosen already",
    StandsIn.CLAIM: "the claim decides it",
}
