"""Parses the question of an OCI hook of podman or Docker, and builds the answer. Pure.

The hook runs as root, with arguments from a CDI spec that root wrote. The question is checked nevertheless, because its
values become paths and names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any  # Any: JSON documents

from nri_rdma.cdi.meaning import label_of
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.device import CharDevice, DeviceNumbers
from nri_rdma.model.request import UNLIMITED, Mode

VERSION = 1
LONGEST = 128 * 1024
"""Maximum size of a question in bytes."""
MAX_DEVICES = 64
"""Maximum number of devices that one container can ask for."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Verb(StrEnum):
    """The kind of a question. Each OCI hook asks one kind."""

    PREPARE = "prepare"
    """Hook precreate: the container is about to be created, and its annotations ask for devices."""
    ATTACH = "attach"
    """Hook createRuntime: the container is created, and its program does not run yet."""
    RETURN = "return"
    """Hook poststop: the container has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A container's request for one device, from the arguments of the hook that a CDI device adds. An attribute is ""
    if the argument is missing."""

    device: str
    pool: str = ""
    mode: str = ""
    netdev: str = ""
    """The name that the netdev gets in the container."""
    memlock: str = ""
    """The RLIMIT_MEMLOCK that the container asks for: `unlimited`, or a number of bytes."""
    hca_handles: str = ""
    hca_objects: str = ""
    """The limits hca_handle and hca_object of the rdma cgroup, as numbers."""

    @property
    def limits(self) -> dict[str, int]:
        """Return the limits under the keys that a request in an annotation has; empty if there are none."""
        asked = {"hcaHandles": self.hca_handles, "hcaObjects": self.hca_objects}
        return {key: int(number) for key, number in asked.items() if number}

    @property
    def memlock_bytes(self) -> int | None:
        """Return RLIMIT_MEMLOCK in bytes; None if the hook has no such argument."""
        if not self.memlock:
            return None
        return UNLIMITED if self.memlock == "unlimited" else int(self.memlock)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookQuestion:
    """The question of one hook about one container. The container asks for devices either by `wishes` or by
    `annotations`.

    `pid` is the container's first process (0 after its end). `nodes` are the device nodes with which the container was
    created. `cgroups_path` is from its OCI spec; "" if the spec has none.
    """

    verb: Verb
    container_id: str
    pid: int = 0
    wishes: tuple[Wish, ...] = ()
    nodes: Mapping[str, DeviceNumbers] = field(default_factory=dict)
    cgroups_path: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those annotations of the container whose keys begin with our prefix."""
    variables: frozenset[str] = frozenset()
    """The names of the environment variables that the container sets itself."""
    prepared: Mapping[str, str] = field(default_factory=dict)
    """The environment variables that the daemon's answer to PREPARE added to the container."""
    bundle: str = ""
    """The directory of the container's OCI configuration; "" from a hook of an older release."""
    has_network: bool = True
    """Whether the container has, or will have, its own network namespace instead of the host's."""
    links: frozenset[str] = frozenset()
    """The netdevs that are already in the container's network namespace, because containers share the namespace."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the container that force an index of the GID table, with their values."""
    may_lock: bool = False
    """Whether the container's program has CAP_IPC_LOCK on the host."""
    memlock: int | None = None
    """The RLIMIT_MEMLOCK in bytes in the container's configuration (podman --ulimit), which runc sets after the hook;
    None: the configuration has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer for a container that may start.

    `memlock` is the RLIMIT_MEMLOCK in bytes that the hook sets; None: the hook leaves it alone. `must`: the container
    must not start if the hook cannot set it.
    """

    memlock: int | None = None
    must: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The answer for a container that is about to be created: the device nodes and environment variables to create it
    with."""

    nodes: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def read_question(data: bytes) -> HookQuestion:
    """Parse the packet of a hook. Raises NriRdmaError if the packet is malformed or of another version."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, this daemon reads {VERSION}")
        return _question(document)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the question of a hook cannot be read: {type(error).__name__} {error}"
        hint = "the hook and the daemon are of different releases: install both anew"
        raise NriRdmaError(ErrorCode.OCI_STATE, what, where="nri-rdma-oci-hook", hint=hint) from error


def _question(document: Mapping[str, Any]) -> HookQuestion:
    verb, container_id, pid = Verb(document["ask"]), document["id"], document.get("pid", 0)
    if not isinstance(container_id, str) or not _ID.fullmatch(container_id):
        raise ValueError(f"{container_id!r} is no id of a container")
    if type(pid) is not int or pid < 0:
        raise ValueError(f"{pid!r} is no process")
    wishes = tuple(map(_wish, document.get("devices", ())))
    if len(wishes) > MAX_DEVICES:
        what = f"the container asks for {len(wishes)} devices, and a container can ask for {MAX_DEVICES}"
        hint = "ask for fewer CDI devices (--device)"
        raise NriRdmaError(ErrorCode.OCI_STATE, what, where="nri-rdma-oci-hook", hint=hint)
    memlock = document.get("memlock")
    if memlock is not None and (type(memlock) is not int or memlock < 0):
        raise ValueError(f"{memlock!r} is no RLIMIT_MEMLOCK")
    annotations = _texts(document.get("annotations", {}))
    if verb is not Verb.RETURN and not (wishes or annotations):
        raise ValueError("no device is asked for")
    for wish in wishes:
        _ = wish.memlock_bytes, wish.limits
    nodes = {_text(path): (int(major), int(minor)) for path, major, minor in document.get("nodes", ())}
    return HookQuestion(
        verb=verb,
        container_id=container_id,
        pid=pid,
        wishes=wishes,
        nodes=nodes,
        cgroups_path=_text(document.get("cgroup", "")),
        annotations=annotations,
        variables=frozenset(map(_text, document.get("variables", ()))),
        prepared=_texts(document.get("prepared", {})),
        indexes=_texts(document.get("indexes", {})),
        may_lock=document.get("locks") is True,
        memlock=memlock,
        bundle=_text(document.get("bundle", "")),
        has_network=bool(document.get("network", True)),
        links=frozenset(map(_text, document.get("links", ()))),
    )


def _wish(flags: Mapping[str, Any]) -> Wish:
    return Wish(**{name.replace("-", "_"): _text(value) for name, value in flags.items()})


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in values.items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def annotation_of(wishes: tuple[Wish, ...], home_of: Mapping[str, str]) -> str:
    """Return the value of a pod annotation that asks for these devices.

    `home_of` maps the name of a device to its pool; it is used for wishes that name no pool.
    """
    return json.dumps([_request(wish, home_of.get(wish.device, "")) for wish in wishes])


def _request(wish: Wish, home: str) -> dict[str, Any]:
    pool = wish.pool or home
    request: dict[str, Any] = {"name": label_of(wish.device), "match": {"device": wish.device}}
    said = {"pool": pool, "mode": wish.mode, "limits": wish.limits}
    request |= {key: value for key, value in said.items() if value}
    if wish.netdev and wish.mode != Mode.SHARED:
        request["interface"] = {"name": wish.netdev}
    return request


def memlock_of(wishes: tuple[Wish, ...]) -> int | None:
    """Return the highest RLIMIT_MEMLOCK in bytes that these wishes ask for; None if no wish asks for one."""
    asked = [number for wish in wishes if (number := wish.memlock_bytes) is not None]
    return max(asked) if asked else None


def holding(question: HookQuestion, memlock: int | None) -> int | None:
    """Return the RLIMIT_MEMLOCK in bytes that will limit the container's program: unlimited with CAP_IPC_LOCK, None if
    unknown.

    `memlock` is the limit that the hook sets. The OCI runtime may set the configuration's limit before or after the
    hook, so the lower one is returned.
    """
    if question.may_lock:
        return UNLIMITED
    return min((it for it in (question.memlock, memlock) if it is not None), default=None)


def yes(given: Given) -> bytes:
    """Return the answer that lets the hook succeed: the container may start, or its devices were returned to the host.
    It has the RLIMIT_MEMLOCK that the hook sets."""
    return json.dumps({"version": VERSION, "memlock": given.memlock, "must": given.must}).encode()


def made_with(prepared: Prepared) -> bytes:
    """Return the answer that lets a container be created with these device nodes and variables."""
    nodes = [(it.path, it.major, it.minor, it.mode, it.uid, it.gid) for it in prepared.nodes]
    return json.dumps({"version": VERSION, "nodes": nodes, "env": prepared.env}).encode()


def no(sentence: str) -> bytes:
    """Return the answer that makes the hook fail, so that the container does not start; `sentence` says why."""
    return json.dumps({"version": VERSION, "refusal": sentence}).encode()


HEARD = json.dumps({"version": VERSION, "heard": True}).encode()
"""The first packet of each answer. It is sent at once and shows that the daemon is alive. The second packet, with the
answer itself, may take as long as an attach."""
