"""Converts a configuration of k8s-rdma-shared-dev-plugin to a configuration of nri-rdma.

Law: nothing is dropped silently. Each key is taken over, changed, or left out with a reason. A configuration that
k8s-rdma-shared-dev-plugin refuses is refused here, too.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, count
from typing import TypeVar

from nri_rdma.errors import ErrorCode, RequestError, SettingError
from nri_rdma.model.device import LinkLayer
from nri_rdma.model.pool import LEAST_OBJECTS
from nri_rdma.text.nodes import Node, node_of
from nri_rdma.text.placed_yaml import Placed, read_documents
from nri_rdma.text.pools import MAX_SHARED_NAME, read_pools
from nri_rdma.text.reading import Reader, list_of, mapping, matching, string, whole
from nri_rdma.text.refusals import Errors, bounded, quoted, refused
from nri_rdma.text.yaml import read_yaml

T = TypeVar("T")
D = TypeVar("D")
DEFAULT_PREFIX = "rdma"
MAX_BYTES = 1 << 20
_MOST = 10_000
"""The most shares of a pool of nri-rdma."""
_PARTS = "a share may have its part of a device, unless you write limits"
_USUAL_OBJECTS = 1 << 17
"""The number of queue pairs of a ConnectX (`ibv_devinfo -v`, max_qp), the scarcest kind of objects of usual HCAs."""
_RESOURCE_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_]{0,61}[a-zA-Z0-9])?")
"""k8s-rdma-shared-dev-plugin also accepts names that begin or end with _. No pod can ask for such a resource, because
Kubernetes refuses the name."""
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LINK_TYPES = {"ether": LinkLayer.ETHERNET, "infiniband": LinkLayer.INFINIBAND}
_RESOURCE_KEYS = ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors")
_SELECTORS = {
    "vendors": "vendor",
    "deviceIDs": "deviceID",
    "drivers": "driver",
    "ifNames": "netdev",
    "linkTypes": "linkLayer",
}
"""By the name of a selector of k8s-rdma-shared-dev-plugin: the key of the condition in a pool of nri-rdma."""


class Fate(StrEnum):
    """The outcome of the conversion for one key of the original file."""

    TAKEN = "taken"
    CHANGED = "changed"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The outcome of the conversion for one key of the original file. `path` leads to the key. `words` says what the
    key has become, or why it was left out."""

    path: str
    fate: Fate
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A configuration that was converted: nri-rdma's TOML, and a note for each key of the original file."""

    toml: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The resource names, pool names and conditions of the entries that are already converted. `names` and `conditions`
    have the path of the entry that uses each."""

    names: dict[str, str] = field(default_factory=dict)
    pools: set[str] = field(default_factory=set)
    """The names of the pools."""
    conditions: dict[frozenset[tuple[str, frozenset[str]]], str] = field(default_factory=dict)


def imported(text: str, file: str) -> Imported:
    """Convert a configuration of k8s-rdma-shared-dev-plugin (JSON, or a ConfigMap with it) to TOML for nri-rdma. Raises
    SettingError that names the file and the place, if the configuration cannot be converted."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise SettingError(ErrorCode.SETTING, f"longer than {MAX_BYTES} bytes", where=file, hint="give a shorter file")
    try:
        return _document(read_yaml(_of_config_map(text), "configuration"))
    except RequestError as error:
        place = error.where.removeprefix("configuration").lstrip(".")
        where = f"{file}: {place}" if place else file
        raise SettingError(ErrorCode.SETTING, error.what, where=where, hint=error.hint) from error


def _of_config_map(text: str) -> str:
    """Return the text of the file in a ConfigMap (`kubectl get configmap -o yaml`). Any other text is returned
    unchanged. Raises RequestError if the ConfigMap does not have exactly one file."""
    documents = read_documents(text.encode(errors="surrogatepass"))
    value = documents[0].value if documents and isinstance(documents[0], Placed) else None
    if not isinstance(value, dict) or value.get("kind") != "ConfigMap":
        return text
    data = value.get("data")
    files = [it for it in data.values() if isinstance(it, str)] if isinstance(data, dict) else []
    if len(files) != 1:
        what = f"a ConfigMap with {len(files)} files"
        raise refused("configuration.data", what, "give the file that the device plugin reads, such as config.json")
    return files[0]


def _document(node: Node | None) -> Imported:
    if isinstance(node, dict) and "resourceList" in node:
        what = "this is a configuration of sriov-network-device-plugin, which is not converted"
        hint = (
            'write a pool for each of its resources: door = "resource", gives = "device", modes = ["exclusive"],'
            ' resource = "PREFIX/NAME", and its selectors in select: vendors is vendor, devices deviceID, drivers'
            " driver, pfNames pfName, pciAddresses pci, linkTypes linkLayer (docs/configuration.md)"
        )
        raise refused("configuration.resourceList", what, hint)
    if not isinstance(node, dict):
        raise refused("configuration", "it is no JSON object", 'give the file with "configList" of the device plugin')
    notes: list[Note] = []
    fields = _fields(node, "configuration", ("configList", "periodicUpdateInterval"), notes)
    if "periodicUpdateInterval" in node:
        _read(fields, "configuration", "periodicUpdateInterval", whole(0, 1 << 31), 0)
        words = "nri-rdma hears of changes from the kernel"
        notes.append(Note(path="periodicUpdateInterval", fate=Fate.LEFT_OUT, words=words))
    entries = node.get("configList")
    if not isinstance(entries, list) or not entries:
        raise refused("configuration.configList", "no resources are configured", "give at least one resource")
    seen = _Seen()
    tables = []
    for index, entry in enumerate(entries):
        pool = _pool(entry, f"configuration.configList[{index}]", seen)
        notes += pool.notes
        tables += [pool.toml] if pool.toml else []
    if tables:
        words = "their plugin gives it, too: it can manage the whole fabric, so it needs a rule with devices"
        notes.append(Note(path="/dev/infiniband/umad*", fate=Fate.LEFT_OUT, words=words))
    return Imported(toml="\n".join(tables), notes=tuple(notes))


def _pool(entry: Node, where: str, seen: _Seen) -> Imported:
    unknown: list[Note] = []
    fields = _fields(entry, where, _RESOURCE_KEYS, unknown)
    path = where.removeprefix("configuration.")
    hint = "use letters, digits and _, the latter only within"
    name = _read(fields, where, "resourceName", matching(_RESOURCE_NAME, hint), "")
    if not name:
        raise refused(f"{where}.resourceName", "it is missing", hint)
    if name in seen.names:
        raise refused(f"{where}.resourceName", f"{name} is the name of {seen.names[name]}", "choose another")
    seen.names[name] = path
    prefix = _read(fields, where, "resourcePrefix", _prefix, DEFAULT_PREFIX)
    shares = _read(fields, where, "rdmaHcaMax", whole(0, 1 << 31), 0)
    conditions = _conditions(fields, where, unknown)
    if not shares:
        words = f"rdmaHcaMax is 0: {prefix}/{name} has no shares"
        return Imported(toml="", notes=(Note(path=path, fate=Fate.LEFT_OUT, words=words), *unknown))
    selected = frozenset((key, frozenset(values)) for key, values in conditions.items())
    if selected in seen.conditions:  # their plugin allows a device in several resources
        key = "selectors" if fields.get("selectors") else "devices"
        what = f"it selects the same devices as {seen.conditions[selected]}, and a device of ours is in one pool only"
        raise refused(f"{where}.{key}", what, "select different devices, or make them one resource")
    seen.conditions[selected] = path
    pool = _pool_name(name, seen.pools)
    lines = [
        f"[pools.{pool}]",
        f"select = {{ {', '.join(f'{key} = {_toml_list(values)}' for key, values in conditions.items())} }}",
        'modes = ["shared"]',
        'door = "resource"',
        f'resource = "{prefix}/{name}"',
        f"shares = {min(shares, _MOST)}",
        'gives = "all"',
        "",
    ]
    toml = "\n".join(lines)
    _refuse_what_our_reader_refuses(toml, fields, pool, where)
    return Imported(toml=toml, notes=(*_notes(fields, path, pool, shares), *unknown))


def _refuse_what_our_reader_refuses(toml: str, entry: Mapping[str, Node], pool: str, where: str) -> None:
    """Raise RequestError if nri-rdma's daemon would refuse the converted pool. The error names the place in the
    original file (of k8s-rdma-shared-dev-plugin) from which the pool was converted."""
    try:
        read_pools(node_of(tomllib.loads(toml)["pools"]))
    except RequestError as error:
        place = error.where.removeprefix(f"pools.{pool}")
        for theirs, ours in _SELECTORS.items():
            own = f"selectors.{theirs}" if entry.get("selectors") else "devices"
            place = place.replace(f"select.{ours}", own)
        raise refused(f"{where}{place}", error.what, error.hint) from error


def _fields(node: Node, where: str, known: tuple[str, ...], unknown: list[Note]) -> Mapping[str, Node]:
    """Return the fields of a mapping that have known keys. For each unknown key a note is added to `unknown`, and no
    error is raised, because k8s-rdma-shared-dev-plugin ignores unknown keys."""
    for key in node if isinstance(node, dict) else ():
        if key not in known:
            path = f"{where}.{bounded(key)}".removeprefix("configuration").removeprefix(".")
            unknown.append(Note(path=path, fate=Fate.LEFT_OUT, words="neither plugin knows this key"))
    own = {key: node[key] for key in node if key in known} if isinstance(node, dict) else node
    return mapping(own, where, known, Errors())


def _read(fields: Mapping[str, Node], where: str, key: str, reader: Reader[T], default: D) -> T | D:
    """Return the value of a key as `reader` reads it; `default` if the key is not there."""
    return reader(fields[key], f"{where}.{key}") if key in fields else default


def _notes(entry: Mapping[str, Node], path: str, pool: str, shares: int) -> Iterator[Note]:
    yield Note(path=f"{path}.resourceName", fate=Fate.TAKEN, words=f"resource of pool {pool}")
    if "resourcePrefix" in entry:
        yield Note(path=f"{path}.resourcePrefix", fate=Fate.TAKEN, words="the part of resource before the slash")
    if shares > _MOST:
        yield Note(path=f"{path}.rdmaHcaMax", fate=Fate.CHANGED, words=f"shares, at most {_MOST}; {_limited(_MOST)}")
    else:
        yield Note(path=f"{path}.rdmaHcaMax", fate=Fate.TAKEN, words=f"shares; {_limited(shares)}")
    if "devices" in entry:
        yield Note(path=f"{path}.devices", fate=Fate.TAKEN, words="select.netdev")
    selectors = entry.get("selectors")
    for key in (it for it in selectors if it in _SELECTORS) if isinstance(selectors, dict) else ():
        yield Note(path=f"{path}.selectors.{key}", fate=Fate.TAKEN, words=f"select.{_SELECTORS[key]}")


def _limited(shares: int) -> str:
    """Return the words of a note about limits: whether each of `shares` shares of a device gets a limited part of the
    device's objects, such as queue pairs."""
    if (shares + 1) * LEAST_OBJECTS <= _USUAL_OBJECTS:
        return _PARTS
    most = _USUAL_OBJECTS // LEAST_OBJECTS - 1
    return (
        f"no share has a limit where its part is smaller than {LEAST_OBJECTS} objects, as with so many shares on a"
        f" usual HCA ({_USUAL_OBJECTS} queue pairs): write limits, or at most {most} shares"
    )


def _conditions(fields: Mapping[str, Node], where: str, unknown: list[Note]) -> Mapping[str, tuple[str, ...]]:
    """Return an entry's conditions on devices, by the keys that a pool of nri-rdma has for them. Raises RequestError
    unless the entry in the original file has either `devices` or `selectors`."""
    devices = _read(fields, where, "devices", _texts, ())
    selectors = _read(fields, where, "selectors", partial(_selectors, unknown=unknown), {})
    if devices and selectors:
        raise refused(where, "it has both devices and selectors", "keep selectors, with the devices in ifNames")
    if not devices and not selectors:
        raise refused(where, "it has neither selectors nor devices", 'write "selectors": {"ifNames": ["..."]}')
    return selectors or {"netdev": devices}


def _selectors(node: Node, where: str, unknown: list[Note]) -> Mapping[str, tuple[str, ...]]:
    fields = _fields(node, where, tuple(_SELECTORS), unknown)
    read = {ours: _read(fields, where, theirs, _READERS.get(theirs, _texts), ()) for theirs, ours in _SELECTORS.items()}
    return {key: values for key, values in read.items() if values}


def _texts(node: Node, where: str) -> tuple[str, ...]:
    """Read a list of texts. An empty list is allowed: it sets no condition, also for k8s-rdma-shared-dev-plugin."""
    return () if node == [] else list_of(partial(string, hint="write a list of texts"))(node, where)


def _link_types(node: Node, where: str) -> tuple[str, ...]:
    found = _texts(node, where)
    for index, word in enumerate(found):
        if word not in _LINK_TYPES:
            raise refused(f"{where}[{index}]", f"{quoted(word)} is no link of RDMA", "write ether or infiniband")
    return tuple(str(_LINK_TYPES[word]) for word in found)


def _prefix(node: Node, where: str) -> str:
    text = string(node, where, "write a DNS name such as rdma or example.com")
    if text and not _PREFIX.fullmatch(text):
        raise refused(where, f"{quoted(text)} is no DNS name", "write such as rdma or example.com")
    return text or DEFAULT_PREFIX


_READERS: Mapping[str, Callable[[Node, str], tuple[str, ...]]] = {"linkTypes": _link_types}


def _pool_name(name: str, taken: set[str]) -> str:
    """Make the name of a pool from the name of a resource, and add it to `taken`, the pool names in use. Characters
    that a pool's name cannot have are replaced. If the name is in use, a number is appended."""
    written = name.replace("_", "-")
    named = written if written[0].isalpha() else f"pool-{written}"
    for ending in chain(("",), (f"-{number}" for number in count(2))):
        found = named[: MAX_SHARED_NAME - len(ending)].rstrip("-") + ending
        if found not in taken:
            break
    taken.add(found)
    return found


def _toml_list(values: tuple[str, ...]) -> str:
    return json.dumps(list(values))  # JSON's strings are valid TOML
