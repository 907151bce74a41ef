"""Reads CDI specs strictly: a file that runtimes would refuse, or understand differently from its author, is refused.

Law: any bytes become a Spec, or problems with code, line, key path and next step; no other error is raised. docs/cdi.md
lists what this module refuses although runtimes accept it, with the reason. tests/interop compares this module with the
Go library by which runtimes read specs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any  # Any: fields of the value that a mapping becomes

from nri_rdma.cdi.document import read_document
from nri_rdma.cdi.names import DEVICE, DEVICE_HINT, KIND_HINT, parse_kind
from nri_rdma.cdi.problems import MAX_PROBLEMS, OF_SPECS, path_text, problems_of, step_text
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
from nri_rdma.errors import CdiError, ErrorCode, RequestError
from nri_rdma.text.forms import FLAG, Form, Key, Misfits, names_of, number, table, text_of, word_of
from nri_rdma.text.nodes import Node, Path, Scalar, is_missing, line_of, shown
from nri_rdma.text.reading import MappingErrors, each_read, empty_or, one_of, written
from nri_rdma.text.refusals import Errors, listed, nearest, quoted, refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The result of reading a CDI spec file. `spec` is None if the file has problems. A valid spec may contain a
    request to nri-rdma in an annotation; `problems` then has what is wrong with it (nri_rdma.cdi.asking)."""

    spec: Spec | None
    problems: tuple[CdiError, ...]


def parse(data: bytes, file: str) -> Spec:
    """Return the spec in the text of `file`. Raise CdiError, the problem with the lowest line, if the file has
    problems."""
    inspected = inspect(data, file)
    if inspected.spec is None:
        raise inspected.problems[0]
    return inspected.spec


def inspect(data: bytes, file: str) -> Inspected:
    """Return the spec in the text of `file`, or all problems of the file."""
    errors = Errors(most=MAX_PROBLEMS)
    spec = None
    try:
        spec = _spec(data, errors)
    except RequestError as error:
        errors.add(error)
    return Inspected(spec=None if errors else spec, problems=problems_of(errors, file, OF_SPECS))


def _spec(data: bytes, errors: Errors) -> Spec:
    node = read_document(data, errors)
    if node is None or is_missing(node):
        raise RequestError(ErrorCode.CDI_SYNTAX, "there is nothing in the file", hint="write a spec, or remove it")
    try:
        spec: Spec = _SPEC.read(node, "")
    except RequestError as error:
        error.line = error.line or line_of(node)
        raise
    if not errors:
        _check_version(spec, node, errors)
    return spec


def _check_version(spec: Spec, node: Node, errors: Errors) -> None:
    minimum = minimum_version(spec)
    for needed in needs(spec):
        if is_older(spec.version, needed.version):
            what = f"{needed.what} came with CDI {needed.version}, and the spec declares {spec.version}"
            hint, where = f"write cdiVersion: {minimum}, or do without", path_text(needed.path)
            errors.add(RequestError(ErrorCode.CDI_VERSION, what, where=where, hint=hint), line_at(node, needed.path))


def line_at(node: Node, path: Path) -> int:
    """Return the line of the value to which the keys and indexes in `path` lead."""
    line = line_of(node)
    for step in path:
        match node, step:
            case dict(), str():
                line, node = line_of(node, step), node[step]
            case list(), int():
                node = node[step]
                line = line_of(node)
    return line


# Values

MAX_MAJOR, MAX_MINOR = 2**12 - 1, 2**20 - 1
"""The largest device numbers of Linux (MAJORBITS, MINORBITS). Linux would cut a larger number off, so that the node
would be another device."""
_MAX_FILE_NAME = 4095
_text = written("write a text, in quotes where in doubt")


def _version(node: Node, where: str) -> Version:
    text = _text(node, where)
    word = text.removeprefix("v")
    if word in {"0.1.0", "0.2.0"}:
        what, hint = f"{quoted(text)} is older than what runtimes accept", f"write {VERSIONS[0]} or later"
        raise RequestError(ErrorCode.CDI_VERSION, what, where=where, hint=hint)
    if word not in VERSIONS:
        what, hint = f"{quoted(text)} is no version of CDI", f"write one of {listed(VERSIONS)}"
        raise RequestError(ErrorCode.CDI_VERSION, what, where=where, hint=hint)
    return Version(word)


def _kind(node: Node, where: str) -> Kind:
    text = _text(node, where)
    kind = parse_kind(text)
    if kind is None:
        raise refused(where, f"{quoted(text)} is not allowed", KIND_HINT)
    if 1 in {len(kind.vendor), len(kind.device_class)}:
        what = f"{quoted(text)} has a vendor or class of one letter, which makes containerd 2.1 and older crash"
        raise refused(where, what, "give it two letters at least")
    return kind


def _non_empty(node: Node, where: str) -> str:
    text = _text(node, where)
    if not text:
        raise refused(where, "the text is empty", "write something")
    return text


def _clos_id(node: Node, where: str) -> str:
    """Read the name of a folder in the resctrl file system, or ``/`` for its root."""
    text = _text(node, where)
    too_long = len(text.encode()) > _MAX_FILE_NAME
    if text != "/" and (too_long or text in {".", ".."} or "/" in text or "\n" in text):
        raise refused(where, f"{quoted(text)} is not allowed", "write the name of a folder, or / alone")
    return text


def _annotations(node: Node, where: str) -> tuple[tuple[str, str], ...]:
    """Read a mapping of texts. A null counts as an empty text. Raise RequestError for any other value."""
    if not isinstance(node, dict):
        raise refused(where, f"{shown(node)} is not a mapping", "write KEY: text")
    errors = Errors(most=MAX_PROBLEMS)
    pairs: list[tuple[str, str]] = []
    for key, value in node.items():
        try:
            pairs.append((key, "" if is_missing(value) else _text(value, f"{where}{step_text(key)}")))
        except RequestError as error:
            errors.add(error, line_of(value))
    errors.refuse()
    return tuple(pairs)


# Lists and mappings


def _unknown_field(key: str, known: tuple[str, ...], where: str) -> RequestError:
    hint = f"{nearest(key, known)}the fields are {listed(known)}"
    place = f"{where}{step_text(key)}"
    return RequestError(ErrorCode.CDI_UNKNOWN_FIELD, f"unknown field {quoted(key)}", where=place, hint=hint)


_FIELDS = MappingErrors(_unknown_field, "write the fields {}", MAX_PROBLEMS)


def _list_of(form: Form, *once: tuple[str, re.Pattern[str], str, str]) -> Form:
    """Return the form of a list, which may be empty. A null entry is refused, because some runtimes would crash and
    others would drop it. Each item of `once` is a key whose values must differ between the entries, the pattern of
    values for which this holds, an error text and a hint."""

    def entry(node: Node, where: str) -> object:
        if is_missing(node):
            raise refused(where, "there is nothing in this entry", "take the entry out")
        return form.read(node, where)

    def several(node: Node, where: str) -> tuple[object, ...]:
        if not isinstance(node, list):
            raise refused(where, f"{shown(node)} is not a list", "write - or [ ] around it")
        errors = Errors(most=MAX_PROBLEMS)
        items = each_read(node, where, entry, errors)
        seen: set[tuple[str, str]] = set()
        for index, item in enumerate(node):
            for key, pattern, what, hint in once:
                named = item.get(key) if isinstance(item, dict) else None
                text = named.text if isinstance(named, Scalar) and not named.is_missing else ""
                if (key, text) in seen:
                    errors.add(refused(f"{where}[{index}]", what.format(quoted(text)), hint, key), line_of(item, key))
                    break
                if pattern.fullmatch(text):
                    seen.add((key, text))
        errors.refuse()
        return tuple(items)

    return Form(several, keys=form.keys)


def _table(fills: type[Any], *keys: Key, misfits: Misfits | None = None) -> Form:
    return table(fills, keys, _FIELDS, misfits)


# The keys

_TEXT = Form(_text)
_NON_EMPTY = Form(_non_empty)
_TEXTS = _list_of(_TEXT)
_VARIABLES = _list_of(text_of(re.compile(r"[^=]+=.*", re.DOTALL), "write NAME=value", _text))
_ANY = re.compile(r".+", re.DOTALL)
_ID = number(0, 2**32 - 1)

_DEVICE_NODE = _table(
    DeviceNode,
    Key("path", "path", _NON_EMPTY, required="write the node's path in the container"),
    Key("hostPath", "host_path", _TEXT),
    Key("type", "type", Form(empty_or(one_of(NodeType, _text)))),
    Key("major", "major", number(0, MAX_MAJOR)),
    Key("minor", "minor", number(0, MAX_MINOR)),
    Key("fileMode", "file_mode", number(0, 2**32 - 1)),
    Key("permissions", "permissions", text_of(re.compile(r"[rwm]*|none"), "write letters of rwm, or none", _text)),
    Key("uid", "uid", _ID),
    Key("gid", "gid", _ID),
)
_NET_DEVICE = _table(
    NetDevice,
    Key("hostInterfaceName", "host_interface_name", _NON_EMPTY, required="write the netdev's name on the host"),
    Key("name", "name", _NON_EMPTY, required="write the netdev's name in the container"),
)
_NETDEVS_ONCE = (_ANY, "{} is there twice", "name each netdev once")
_HOOK = _table(
    Hook,
    Key("hookName", "hook_name", word_of(HookName, _text), required=f"write one of {listed(HookName)}"),
    Key("path", "path", _NON_EMPTY, required="write the path of the program on the host"),
    Key("args", "args", _TEXTS),
    Key("env", "env", _VARIABLES),
    Key("timeout", "timeout", number(-(2**63), 2**63 - 1)),
)
_MOUNT = _table(
    Mount,
    Key("hostPath", "host_path", _NON_EMPTY, required="write what is mounted"),
    Key("containerPath", "container_path", _NON_EMPTY, required="write where in the container it is mounted"),
    Key("options", "options", _TEXTS),
    Key("type", "type", _TEXT),
)
_INTEL_RDT = _table(
    IntelRdt,
    Key("closID", "clos_id", Form(_clos_id)),
    Key("l3CacheSchema", "l3_cache_schema", _TEXT),
    Key("memBwSchema", "mem_bw_schema", _TEXT),
    Key("schemata", "schemata", _TEXTS),
    Key("enableMonitoring", "enable_monitoring", FLAG),
)
EDITS_KEYS = (
    Key("env", "env", _VARIABLES),
    Key("deviceNodes", "device_nodes", _list_of(_DEVICE_NODE)),
    Key(
        "netDevices",
        "net_devices",
        _list_of(_NET_DEVICE, ("hostInterfaceName", *_NETDEVS_ONCE), ("name", *_NETDEVS_ONCE)),
    ),
    Key("hooks", "hooks", _list_of(_HOOK)),
    Key("mounts", "mounts", _list_of(_MOUNT)),
    Key("intelRdt", "intel_rdt", _INTEL_RDT),
    Key("additionalGids", "additional_gids", _list_of(_ID)),
)
_EDITS = _table(Edits, *EDITS_KEYS)
_EDITS_HINT = f"give it at least one of {listed(names_of(EDITS_KEYS))}"
_ANNOTATIONS = Key("annotations", "annotations", Form(_annotations))


def _misfits_of_device(fields: Mapping[str, Any], where: str) -> Iterator[RequestError]:
    if fields["edits"].is_empty:
        yield refused(where, "the device changes nothing", _EDITS_HINT, "containerEdits")


_DEVICE = _table(
    Device,
    Key("name", "name", text_of(DEVICE, DEVICE_HINT, _text), required=DEVICE_HINT),
    _ANNOTATIONS,
    Key("containerEdits", "edits", _EDITS, required=_EDITS_HINT),
    misfits=_misfits_of_device,
)
_DEVICES = _list_of(_DEVICE, ("name", DEVICE, "the device {} is there twice", "give each a name of its own"))


def _devices(node: Node, where: str) -> tuple[Device, ...]:
    """Read the list of devices. Raise RequestError if it is empty, or if two devices have one name."""
    devices: tuple[Device, ...] = _DEVICES.read(node, where)
    if not devices:
        raise refused(where, "there is no device", "list at least one")
    return devices


SPEC_KEYS = (
    Key("cdiVersion", "version", Form(_version), required="write the version of CDI that the file needs"),
    Key("kind", "kind", Form(_kind), required=KIND_HINT),
    _ANNOTATIONS,
    Key("devices", "devices", Form(_devices, keys=_DEVICE.keys), required="list at least one device"),
    Key("containerEdits", "edits", _EDITS),
)
_SPEC = _table(Spec, *SPEC_KEYS)
