"""The journal: one file per attach of a sandbox, written before anything on the host changes.

It lives on a tmpfs (``/run``), which is lost at a reboot together with all moves, so nothing is synced to a disk. A
file has a version and a checksum, and is replaced as a whole: the new text is written beside it, then renamed. A file
that cannot be read is renamed to ``*.unreadable`` and reported; it never stops the daemon.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from nri_rdma.attach.plain import from_plain
from nri_rdma.attach.plan import NetdevMove, Plan
from nri_rdma.attach.record import SandboxRecord, refuse_unusable
from nri_rdma.decide.inject import USUAL_INTERFACE, AttachedRequest
from nri_rdma.decide.policy import Admitted
from nri_rdma.errors import ErrorCode, StateError
from nri_rdma.model.device import EbpfPrograms
from nri_rdma.model.network import EthtoolConfig, NetworkConfig
from nri_rdma.model.request import DeviceRequest, InterfaceConfig
from nri_rdma.model.same import Same

VERSION = 1
ROOM_BYTES = 64 * 1024
"""The free space that `has_room` asks for. A record of 16 NICs with a few addresses, routes and neighbours each takes
about half of that."""
_DEL = b"\x7f"
"""The only ASCII character that json escapes and msgspec does not."""


class Journal:
    """The records of all sandboxes with an attachment, as files in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, record: SandboxRecord) -> None:
        """Store the record; it replaces an older record with its key. Raises OSError; the older record is then
        unchanged."""
        path = self._path(record.key)
        beside = f"{path.removesuffix('.json')}.new"
        try:
            _write(beside, encode_record(record))
            os.replace(beside, path)  # noqa: PTH105 - making two Path objects takes as long as the write
        except OSError:
            Path(beside).unlink(missing_ok=True)  # otherwise half a record would stay until the next daemon starts
            raise

    def has_room(self) -> bool:
        """Return whether the file system has room for one more record; True if it does not report its free space. The
        start of a pod waits for this check, which is cheaper than writing a record. Raises OSError."""
        state = os.statvfs(self._directory)
        has_blocks = not state.f_blocks or state.f_bavail * state.f_frsize >= ROOM_BYTES
        has_files = not state.f_files or state.f_favail > 0
        return has_blocks and has_files and not state.f_flag & os.ST_RDONLY

    def remove(self, key: str) -> None:
        """Remove the record with this key, if there is one. A key that cannot be a file name is ignored."""
        with suppress(StateError):  # such a key never had a record
            Path(self._path(key)).unlink(missing_ok=True)

    def load(self) -> tuple[tuple[SandboxRecord, ...], tuple[StateError, ...]]:
        """Return all readable records, and one error for each file that was set aside."""
        for half in self._directory.glob("*.new"):
            half.unlink(missing_ok=True)  # a daemon ended while writing it; the record it was to replace is complete
        records: list[SandboxRecord] = []
        errors: list[StateError] = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                records.append(_read(path))
            except StateError as error:
                with suppress(OSError):  # then the file keeps its name, and the next start reports it again
                    path.rename(path.with_suffix(".unreadable"))
                errors.append(error)
        return tuple(records), tuple(errors)

    def _path(self, key: str) -> str:
        refuse_unusable(key)
        return f"{self._directory}/{key}.json"


def _read(path: Path) -> SandboxRecord:
    try:
        record = decode_record(_bytes_of(path), where=str(path))
    except OSError as error:
        raise _unusable(str(error), str(path)) from error
    if record.key != path.stem:
        raise _unusable(f"it is about sandbox {record.key}", str(path))
    return record


def _write(path: str, data: bytes) -> None:
    """Write the file in three system calls, because the start of a pod waits for it. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _bytes_of(path: Path) -> bytes:
    """Return the contents of a regular file. A FIFO or a symbolic link is refused: reading a FIFO blocks, a link leads
    elsewhere."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read()


_NAMES = tuple(field.name for field in fields(SandboxRecord) if field.name != "gids")
_KEPT = 16
"""The number of cached JSON texts of plans and of attached devices. An attach writes its record two or three times, but
plan and devices change at most once."""
_KEPT_OF_JOBS = 64
"""The number of cached JSON texts of request fields. Caching pays, because the pods of a job share the objects in these
fields."""
_OF_THE_CHOICE = ("gpus_from", "gpus_problem", "cpus", "if_free", "per_gpu")
"""The fields of a request that matter for its placement only. Records leave them out, so that the daemon's previous
version, which does not know them, can still read the record and return the devices."""

_NO_PROGRAMS: Any = msgspec.to_builtins(EbpfPrograms())
_RARE: Mapping[str, object] = {
    "admin_access": False,
    "shares": (),
    **dict.fromkeys(("use", "prove", "userspace", "roce_version")),
}
_OF_JOBS = ("routes", "rules", "neighbours", "ethtool")
"""The fields of a request that the pods of a job share; in most requests they are empty."""
_RARE_OF_INTERFACE: Mapping[str, object] = {
    name: value
    for name, value in msgspec.to_builtins(InterfaceConfig()).items()
    if name not in {"name", "mtu", "addresses"}
}
"""The interface settings that most requests leave at their defaults, with these defaults. Records leave out the
defaults, so that the daemon's previous version can read them."""


def _leave_defaults(body: dict[str, Any], defaults: Mapping[str, object]) -> None:
    """Remove the fields that have their default value."""
    for name, value in defaults.items():
        if body[name] == value:
            del body[name]


def encode_record(record: SandboxRecord) -> bytes:
    """Return the contents of a record's journal file."""
    parts = {
        "plan": msgspec.Raw(_plan_text(Same(record.plan))),
        "attached": msgspec.Raw(_attached_text(Same(record.attached))),
    }
    body = {name: _plain(getattr(record, name)) for name in _NAMES if name not in parts}
    _leave_defaults(body["pod"], {"is_listed": True, "cgroups_path": ""})
    text = _canonical(body | parts)
    return f'{{"version": {VERSION}, "checksum": "{_checksum(text)}",\n"record": {text}}}'.encode()


@lru_cache(_KEPT)
def _plan_text(plan: Same[Plan]) -> bytes:
    body = _fields(plan.value, "moves")
    return _canonical(body | {"moves": [_move(move) for move in plan.value.moves]}).encode()


def _move(move: NetdevMove) -> dict[str, Any]:
    body = _fields(move, "config") | _told({"config": move.config})
    _leave_inheritance(body)
    del body["link"]["max_mtu"]  # the undo needs neither of these two
    del body["link"]["fixed_features"]
    return body


@lru_cache(_KEPT)
def _attached_text(attached: Same[tuple[AttachedRequest, ...]]) -> bytes:
    return _canonical([_attached(item) for item in attached.value]).encode()


def _attached(item: AttachedRequest) -> dict[str, Any]:
    admitted = _fields(item.admitted, "request")
    _leave_defaults(admitted, {"is_watched": False, "env": ()})
    devices = _plain(item.devices)
    for device in devices:
        _leave_defaults(device, {"limits": None})
        for netdev in device["device"]["netdevs"]:
            _leave_defaults(netdev, {"programs": _NO_PROGRAMS})
    body = {"admitted": admitted | {"request": _request(item.admitted.request)}, "devices": devices}
    # Almost every pod has the usual interface. Without the field the daemon's previous version can read the record.
    return body if item.pod_interface == USUAL_INTERFACE else body | {"pod_interface": item.pod_interface}


def _request(request: DeviceRequest) -> dict[str, Any]:
    body = _fields(request, "interface", *_OF_JOBS, *_OF_THE_CHOICE)
    _leave_defaults(body, _RARE)
    # Conditions with several values are left out for the same reason as _OF_THE_CHOICE.
    body["match"] = {name: value for name, value in body["match"].items() if not isinstance(value, tuple)}
    body["interface"] = msgspec.Raw(_interface_text(Same(request.interface)))
    return body | _told({name: getattr(request, name) for name in _OF_JOBS})


@lru_cache(_KEPT_OF_JOBS)
def _interface_text(interface: Same[InterfaceConfig]) -> bytes:
    body = _plain(interface.value)
    _leave_defaults(body, _RARE_OF_INTERFACE)
    return _canonical(body).encode()


def _told(values: Mapping[str, object]) -> dict[str, msgspec.Raw]:
    """Return the fields that are not empty, each encoded as JSON. The encoded values are cached, because the pods of a
    job share their objects."""
    texts = {name: _text(Same(value)) for name, value in values.items()}
    return {name: msgspec.Raw(text) for name, text in texts.items() if text not in _NOTHING_TOLD}


@lru_cache(_KEPT_OF_JOBS)
def _text(value: Same[object]) -> bytes:
    return _canonical(_plain(value.value)).encode()


def _fields(value: Plan | NetdevMove | Admitted | DeviceRequest, *but: str) -> dict[str, Any]:
    """Return the fields of a dataclass as plain JSON values, without those named in `but`."""
    return {it.name: _plain(getattr(value, it.name)) for it in fields(value) if it.name not in but}


def _plain(value: object) -> Any:  # Any: plain JSON values
    return msgspec.to_builtins(value, enc_hook=_to_text)


def _leave_inheritance(move: dict[str, Any]) -> None:
    """Remove from an encoded move the fields that the return of the netdev does not need. The inherited rules stay,
    because they outlive the netdev in the pod; `left_out` stays for people to read."""
    if not any(move["takes"].values()):  # always so once the attach has begun
        del move["takes"]
    inherited = move.pop("inherited")
    del move["leads_away"]
    kept = {name: inherited[name] for name in ("rules", "left_out") if inherited[name]}
    if kept:
        move["inherited"] = kept


def decode_record(data: bytes, *, where: str) -> SandboxRecord:
    """Return the record in the contents of a journal file. Raises StateError if it is incomplete, damaged, or of
    another version."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, this daemon reads {VERSION}")
        if document["checksum"] != _checksum(_canonical(document["record"])):
            raise ValueError("its checksum is wrong")
        return from_plain(SandboxRecord, document["record"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unusable(str(error), where) from error


def _unusable(why: str, where: str) -> StateError:
    return StateError(
        ErrorCode.STATE_UNREADABLE,
        f"a journal record cannot be used: {why}",
        where=where,
        hint="the file was set aside as *.unreadable; compare it with `ip link`, and move its devices back by hand",
    )


def _canonical(body: object) -> str:
    """Return the canonical JSON text of a value: keys sorted, ASCII only. The checksum is calculated over it."""
    try:
        text = msgspec.json.encode(body, order="deterministic")  # takes a quarter of json's time
        is_same = text.isascii() and _DEL not in text
    except UnicodeEncodeError:  # a name that is not UTF-8 has surrogates in it (host/netlink/links/link_state.py)
        is_same = False
    return text.decode() if is_same else json.dumps(body, sort_keys=True, separators=(",", ":"), default=_value_of)


def _value_of(written: msgspec.Raw) -> object:
    """Return the value of a field that is already encoded as JSON."""
    return json.loads(bytes(written))


_NOTHING_TOLD: Final = frozenset(
    _canonical(msgspec.to_builtins(value)).encode() for value in ((), NetworkConfig(), EthtoolConfig())
)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_OF_IP = (
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
)


def _to_text(value: object) -> object:
    if isinstance(value, _OF_IP):
        return str(value)
    raise NotImplementedError(type(value).__name__)
