"""What a hook asks for a container, parsed, and what is answered. Pure.

The hook runs as root with arguments of a CDI spec, which root has written. It is checked all the same, because what is
said here becomes paths and names.
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
"""Bytes of a question."""
MAX_DEVICES = 64
"""That one container can ask for."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Verb(StrEnum):
    """A kind of question."""

    PREPARE = "prepare"
    """precreate: the container is about to be made, and asks by annotations what it is to be made with."""
    ATTACH = "attach"
    """createRuntime: the container is made, and its program does not run yet."""
    RETURN = "return"
    """poststop: the container is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A device that a container is to get, as the arguments of its CDI device's hook say it; "" where they do not."""

    device: str
    pool: str = ""
    mode: str = ""
    netdev: str = ""
    """The netdev's name in the container."""
    memlock: str = ""
    """``unlimited``, or bytes."""
    hca_handles: str = ""
    hca_objects: str = ""
    """Limits of the rdma cgroup: numbers."""

    @property
    def limits(self) -> dict[str, int]:
        """Return the limits by the keys of a request; empty: nothing is asked."""
        asked = {"hcaHandles": self.hca_handles, "hcaObjects": self.hca_objects}
        return {key: int(number) for key, number in asked.items() if number}

    @property
    def memlock_bytes(self) -> int | None:
        """Return RLIMIT_MEMLOCK in bytes; None: nothing is asked."""
        if not self.memlock:
            return None
        return UNLIMITED if self.memlock == "unlimited" else int(self.memlock)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookQuestion:
    """One hook's question about the container of an id; `pid` is its first process, 0 when it is over. `nodes` are the
    device nodes that the container was made with, `cgroups_path` is that of its OCI spec ("": none). It asks by
    `wishes` or by `annotations`."""

    verb: Verb
    container_id: str
    pid: int = 0
    wishes: tuple[Wish, ...] = ()
    nodes: Mapping[str, DeviceNumbers] = field(default_factory=dict)
    cgroups_path: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those that are ours."""
    variables: frozenset[str] = frozenset()
    """Names of the variables that the container sets itself."""
    prepared: Mapping[str, str] = field(default_factory=dict)
    """The variables that the container was made with because PREPARE was answered so."""
    bundle: str = ""
    """Where its OCI configuration is; "" where a hook of an older release does not say."""
    has_network: bool = True
    """Whether the container has, or will have, a network namespace that is not the host's."""
    links: frozenset[str] = frozenset()
    """Names of the netdevs that are in it already, where others have it, too."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """The container's variables that force an entry of the GID table, with their values."""
    may_lock: bool = False
    """Whether its program has CAP_IPC_LOCK on the host."""
    memlock: int | None = None
    """The RLIMIT_MEMLOCK that its configuration asks for, which runc sets after the hook (podman --ulimit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer for a container that may start: RLIMIT_MEMLOCK in bytes, which the hook sets; None leaves it alone.
    `must`: the container must not start without."""

    memlock: int | None = None
    must: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The answer for a container that is about to be made: what it is to be made with."""

    nodes: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


def read_question(data: bytes) -> HookQuestion:
    """Return the question in a packet. Raises NriRdmaError."""
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
    """Return these wishes in the words of a pod's annotation. `home_of` says the pool of each device, for wishes that
    name none."""
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
    """Return the RLIMIT_MEMLOCK that these wishes ask for together, in bytes."""
    asked = [number for wish in wishes if (number := wish.memlock_bytes) is not None]
    return max(asked) if asked else None


def holding(question: HookQuestion, memlock: int | None) -> int | None:
    """Return what of this RLIMIT_MEMLOCK holds the container's program: nothing where it has CAP_IPC_LOCK. The OCI
    runtime decides whether this one or the configuration's is set last, so the lower counts."""
    if question.may_lock:
        return UNLIMITED
    return min((it for it in (question.memlock, memlock) if it is not None), default=None)


def yes(given: Given) -> bytes:
    """Return the answer for a container that may start, or whose devices are home."""
    return json.dumps({"version": VERSION, "memlock": given.memlock, "must": given.must}).encode()


def made_with(prepared: Prepared) -> bytes:
    """Return the answer for a container that may be made."""
    nodes = [(it.path, it.major, it.minor, it.mode, it.uid, it.gid) for it in prepared.nodes]
    return json.dumps({"version": VERSION, "nodes": nodes, "env": prepared.env}).encode()


def no(sentence: str) -> bytes:
    """Return the answer for a container that must not start."""
    return json.dumps({"version": VERSION, "refusal": sentence}).encode()


HEARD = json.dumps({"version": VERSION, "heard": True}).encode()
"""The first answer, at once: the daemon lives. The other one may take as long as an attach."""
