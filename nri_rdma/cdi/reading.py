"""Reads CDI specs strictly: a file that runtimes would refuse, or understand differently from its author, is refused.

Law: any bytes become a Spec, or problems with code, line, key path and next step; no other error is raised. docs/cdi.md
lists what is refused here although runtimes accept it, with the reason; tests/interop checks this list against both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_rdma.cdi.document import List, Mapping, Node, Text, read_document
from nri_rdma.cdi.fields import (
    Fields,
    Place,
    boolean,
    empty_or,
    list_of,
    matching,
    non_empty,
    one_of,
    string,
    texts_by_key,
    whole,
)
from nri_rdma.cdi.names import DEVICE, DEVICE_HINT, KIND_HINT, parse_kind
from nri_rdma.cdi.problems import Problems
from nri_rdma.cdi.spec import (
    Device,
    DeviceNode,
    Edits,
    Hook,
    HookName,
    IntelRdt,
    Kind,
    Mount,
    NetDevice,
    NodeType,
    Spec,
    Version,
)
from nri_rdma.cdi.version import VERSIONS, is_older, minimum_version, needs
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.refusals import listed, quoted
from nri_rdma.text.yaml import Path

SPEC_FIELDS = ("cdiVersion", "kind", "annotations", "devices", "containerEdits")
DEVICE_FIELDS = ("name", "annotations", "containerEdits")
EDITS_FIELDS = ("env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids")
DEVICE_NODE_FIELDS = ("path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid")
NET_DEVICE_FIELDS = ("hostInterfaceName", "name")
HOOK_FIELDS = ("hookName", "path", "args", "env", "timeout")
MOUNT_FIELDS = ("hostPath", "containerPath", "options", "type")
INTEL_RDT_FIELDS = ("closID", "l3CacheSchema", "memBwSchema", "schemata", "enableMonitoring")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The result of reading a file: a spec, or problems. A spec may come with problems of its requests to nri-rdma
    (nri_rdma.cdi.asking)."""

    spec: Spec | None
    problems: tuple[CdiError, ...]


def parse(data: bytes, file: str) -> Spec:
    """Return the spec in the text of `file`. Raise the CdiError with the lowest line."""
    inspected = inspect(data, file)
    if inspected.spec is None:
        raise inspected.problems[0]
    return inspected.spec


def inspect(data: bytes, file: str) -> Inspected:
    """Return the spec in the text of `file`, or all problems of the file."""
    problems = Problems(file)
    try:
        spec = _spec(data, problems)
    except CdiError as error:
        problems.add(error)
        spec = None
    return Inspected(spec=None if problems else spec, problems=problems.all)


def _spec(data: bytes, problems: Problems) -> Spec:
    node, place = read_document(data, problems), Place(problems)
    if node is None or (isinstance(node, Text) and node.is_null):
        raise problems.error(ErrorCode.CDI_SYNTAX, "there is nothing in the file", hint="write a spec, or remove it")
    fields = Fields(node, place, SPEC_FIELDS)
    spec = Spec(
        version=fields.required("cdiVersion", _version, VERSIONS[-1], "write the version of CDI that the file needs"),
        kind=fields.required("kind", _kind, _NO_KIND, KIND_HINT),
        devices=fields.required("devices", _devices, (), "list at least one device"),
        edits=fields.read("containerEdits", _edits, Edits()),
        annotations=fields.read("annotations", texts_by_key, ()),
    )
    if not problems:
        _check_version(spec, node, place)
    return spec


_NO_KIND = Kind(vendor="", device_class="")
_NO_EDITS = Edits()


def _check_version(spec: Spec, node: Node, place: Place) -> None:
    minimum = minimum_version(spec)
    for needed in needs(spec):
        if is_older(spec.version, needed.version):
            what = f"{needed.what} came with CDI {needed.version}, and the spec declares {spec.version}"
            hint = f"write cdiVersion: {minimum}, or do without"
            error = place.problems.error(
                ErrorCode.CDI_VERSION, what, hint=hint, line=line_of(node, needed.path), path=needed.path
            )
            place.problems.add(error)


def line_of(node: Node, path: Path) -> int:
    """Return the line of the value at the path."""
    line = node.line
    for step in path:
        match node, step:
            case Mapping(), str():
                line, node = node.entries[step].line, node.entries[step].node
            case List(), int():
                node = node.items[step]
                line = node.line
    return line


# Objects


def _version(node: Node, place: Place) -> Version:
    text = string(node, place)
    word = text.removeprefix("v")
    if word in {"0.1.0", "0.2.0"}:
        what, hint = f"{quoted(text)} is older than what runtimes accept", f"write {VERSIONS[0]} or later"
        raise place.refused(node.line, what, hint, ErrorCode.CDI_VERSION)
    if word not in VERSIONS:
        what, hint = f"{quoted(text)} is no version of CDI", f"write one of {listed(VERSIONS)}"
        raise place.refused(node.line, what, hint, ErrorCode.CDI_VERSION)
    return Version(word)


def _kind(node: Node, place: Place) -> Kind:
    text = string(node, place)
    kind = parse_kind(text)
    if kind is None:
        raise place.refused(node.line, f"{quoted(text)} is not allowed", KIND_HINT)
    if 1 in {len(kind.vendor), len(kind.device_class)}:
        what = f"{quoted(text)} has a vendor or class of one letter, which makes containerd 2.1 and older crash"
        raise place.refused(node.line, what, "give it two letters at least")
    return kind


def _devices(node: Node, place: Place) -> tuple[Device, ...]:
    """Read the devices: at least one, and no name twice."""
    seen: set[str] = set()
    problems_before = len(place.problems)

    def unique(item: Node, below: Place) -> Device:
        device = _device(item, below)
        if device.name in seen:
            what, hint = f"the device {quoted(device.name)} is there twice", "give each a name of its own"
            raise below.below("name").refused(line_of(item, ("name",)), what, hint)
        if device.name:
            seen.add(device.name)
        return device

    devices = list_of(unique)(node, place)
    if not devices and len(place.problems) == problems_before:
        raise place.refused(node.line, "there is no device", "list at least one")
    return devices


def _device(node: Node, place: Place) -> Device:
    problems_before = len(place.problems)
    fields = Fields(node, place, DEVICE_FIELDS)
    device = Device(
        name=fields.required("name", matching(DEVICE, DEVICE_HINT), "", DEVICE_HINT),
        edits=fields.required("containerEdits", _edits, None, _EDITS_HINT) or _NO_EDITS,
        annotations=fields.read("annotations", texts_by_key, ()),
    )
    if device.edits.is_empty and len(place.problems) == problems_before:
        line = fields.line("containerEdits")
        place.problems.add(place.below("containerEdits").refused(line, "the device changes nothing", _EDITS_HINT))
    return device


_EDITS_HINT = f"give it at least one of {listed(EDITS_FIELDS)}"


def _edits(node: Node, place: Place) -> Edits:
    fields = Fields(node, place, EDITS_FIELDS)
    return Edits(
        env=fields.read("env", list_of(_variable), ()),
        device_nodes=fields.read("deviceNodes", list_of(_device_node), ()),
        net_devices=fields.read("netDevices", _net_devices, ()),
        hooks=fields.read("hooks", list_of(_hook), ()),
        mounts=fields.read("mounts", list_of(_mount), ()),
        intel_rdt=fields.read("intelRdt", _intel_rdt, None),
        additional_gids=fields.read("additionalGids", list_of(_ID), ()),
    )


def _device_node(node: Node, place: Place) -> DeviceNode:
    fields = Fields(node, place, DEVICE_NODE_FIELDS)
    return DeviceNode(
        path=fields.required("path", non_empty, "", "write the node's path in the container"),
        host_path=fields.read("hostPath", string, ""),
        type=fields.read("type", empty_or(one_of(NodeType)), None),
        major=fields.read("major", whole(0, MAX_MAJOR), None),
        minor=fields.read("minor", whole(0, MAX_MINOR), None),
        file_mode=fields.read("fileMode", whole(0, _MAX_UINT32), None),
        permissions=fields.read("permissions", matching(_PERMISSIONS, "write letters of rwm, or none"), ""),
        uid=fields.read("uid", _ID, None),
        gid=fields.read("gid", _ID, None),
    )


def _net_devices(node: Node, place: Place) -> tuple[NetDevice, ...]:
    """Read the netdevs: no host name and no container name twice."""
    seen: dict[str, set[str]] = {"hostInterfaceName": set(), "name": set()}

    def unique(item: Node, below: Place) -> NetDevice:
        device = _net_device(item, below)
        for field, value in (("hostInterfaceName", device.host_interface_name), ("name", device.name)):
            if value in seen[field]:
                what, hint = f"{quoted(value)} is there twice", "name each netdev once"
                raise below.below(field).refused(line_of(item, (field,)), what, hint)
            if value:
                seen[field].add(value)
        return device

    return list_of(unique)(node, place)


def _net_device(node: Node, place: Place) -> NetDevice:
    fields = Fields(node, place, NET_DEVICE_FIELDS)
    return NetDevice(
        host_interface_name=fields.required("hostInterfaceName", non_empty, "", "write the netdev's name on the host"),
        name=fields.required("name", non_empty, "", "write the netdev's name in the container"),
    )


def _hook(node: Node, place: Place) -> Hook:
    fields = Fields(node, place, HOOK_FIELDS)
    names = f"write one of {listed(HookName)}"
    return Hook(
        hook_name=fields.required("hookName", one_of(HookName), HookName.POSTSTOP, names),
        path=fields.required("path", non_empty, "", "write the path of the program on the host"),
        args=fields.read("args", list_of(string), ()),
        env=fields.read("env", list_of(_variable), ()),
        timeout=fields.read("timeout", whole(-(2**63), 2**63 - 1), None),
    )


def _mount(node: Node, place: Place) -> Mount:
    fields = Fields(node, place, MOUNT_FIELDS)
    return Mount(
        host_path=fields.required("hostPath", non_empty, "", "write what is mounted"),
        container_path=fields.required("containerPath", non_empty, "", "write where in the container it is mounted"),
        options=fields.read("options", list_of(string), ()),
        type=fields.read("type", string, ""),
    )


def _intel_rdt(node: Node, place: Place) -> IntelRdt:
    fields = Fields(node, place, INTEL_RDT_FIELDS)
    return IntelRdt(
        clos_id=fields.read("closID", _clos_id, ""),
        l3_cache_schema=fields.read("l3CacheSchema", string, ""),
        mem_bw_schema=fields.read("memBwSchema", string, ""),
        schemata=fields.read("schemata", list_of(string), None),
        enable_monitoring=fields.read("enableMonitoring", boolean, False),
    )


# Values

MAX_MAJOR, MAX_MINOR = 2**12 - 1, 2**20 - 1
"""The largest device numbers of Linux (MAJORBITS, MINORBITS): makedev() would cut a larger number off, and the node
would be another device."""
_MAX_UINT32 = 2**32 - 1
_ID = whole(0, _MAX_UINT32)
_PERMISSIONS = re.compile(r"[rwm]*|none")
_VARIABLE = re.compile(r"[^=]+=.*", re.DOTALL)
_variable = matching(_VARIABLE, "write NAME=value")
_MAX_FILE_NAME = 4095


def _clos_id(node: Node, place: Place) -> str:
    """Read the name of a folder in the resctrl file system, or ``/`` for its root."""
    text = string(node, place)
    too_long = len(text.encode()) > _MAX_FILE_NAME
    if text != "/" and (too_long or text in {".", ".."} or "/" in text or "\n" in text):
        raise place.refused(node.line, f"{quoted(text)} is not allowed", "write the name of a folder, or / alone")
    return text
