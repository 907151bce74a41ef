"""Converts plain JSON values into frozen dataclasses, by the types of their fields.

msgspec writes the plain values, but it cannot read a union of two types of the standard library (an IPv4 or an IPv6
address). Reading checks everything: a missing, unknown or mistyped field is a ValueError that names the field.

A reader function is built once for each type, because a daemon may read a thousand records at its start.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Any, TypeVar  # Any: types are values here

T = TypeVar("T")

_Where = tuple[Any, ...]
"""The name of the field being read, then the names of the fields around it. It is turned into text only for errors."""
_Read = Callable[[Any, _Where], Any]
"""Converts a plain JSON value into a typed value, or raises ValueError."""

_PLAIN: tuple[type, ...] = (str, int, bool, type(None))
_OF_IP: dict[type, Callable[[str], Any]] = {
    IPv4Interface: ip_interface,
    IPv6Interface: ip_interface,
    IPv4Network: ip_network,
    IPv6Network: ip_network,
    IPv4Address: ip_address,
    IPv6Address: ip_address,
}


def from_plain(kind: type[T], value: object) -> T:
    """Return the plain JSON value as a value of the type `kind`. Raises ValueError if a field is missing, unknown or of
    another type."""
    typed: Any = kind
    result: T = _reader(typed)(value, (kind.__name__,))
    return result


@cache
def _reader(kind: Any) -> _Read:
    kind = getattr(kind, "__supertype__", kind)  # a NewType is read as its underlying type
    origin = typing.get_origin(kind)
    if origin in {typing.Union, types.UnionType}:
        return _union_reader(typing.get_args(kind))
    if origin in {tuple, frozenset}:
        return _many_reader(origin, typing.get_args(kind))
    if dataclasses.is_dataclass(kind):
        return _fields_reader(kind)
    return _scalar_reader(kind)


def _scalar_reader(kind: Any) -> _Read:
    if issubclass(kind, Enum):
        return lambda value, _where: kind(value)
    if kind is bytes:
        return _read_bytes
    if kind in _OF_IP:
        parse = _OF_IP[kind]

        def read_address(value: Any, where: _Where) -> Any:
            _expect(type(value) is str, where, value)
            result = parse(value)
            _expect(isinstance(result, kind), where, value)
            return result

        return read_address

    def read_plain(value: Any, where: _Where) -> Any:
        if type(value) is not kind or kind not in _PLAIN:
            raise _unfit(where, value)
        return value

    return read_plain


def _read_bytes(value: Any, where: _Where) -> bytes:
    _expect(type(value) is str, where, value)
    return base64.b64decode(value, validate=True)


def _union_reader(kinds: tuple[Any, ...]) -> _Read:
    takes_none = type(None) in kinds
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any, where: _Where) -> Any:
        if value is None and takes_none:  # the usual case, without trying the other types
            return None
        for reader in readers:
            try:
                return reader(value, where)
            except (ValueError, TypeError):
                continue
        raise _unfit(where, value)

    return read


def _many_reader(origin: Any, kinds: tuple[Any, ...]) -> _Read:
    """Return the function that makes a value of the type `origin[*kinds]` from a JSON list: a tuple of any length, a
    tuple of a fixed length, or a frozenset."""
    readers = [_reader(kind) for kind in kinds if kind is not Ellipsis]
    one = readers[0]

    def read_each(value: Any, where: _Where) -> Any:
        _expect(isinstance(value, list) and len(value) == len(readers), where, value)
        return tuple(reader(item, where) for reader, item in zip(readers, value, strict=True))

    def read_all(value: Any, where: _Where) -> Any:
        _expect(isinstance(value, list), where, value)
        return origin(one(item, where) for item in value)

    has_length = origin is tuple and (len(kinds) != 2 or kinds[1] is not Ellipsis)
    return read_each if has_length else read_all


def _fields_reader(kind: Any) -> _Read:
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}

    def read(value: Any, where: _Where) -> Any:
        _expect(isinstance(value, dict), where, value)
        _expect(value.keys() <= readers.keys(), where, sorted(value.keys() - readers.keys()))
        fields = {name: readers[name](item, (name, where)) for name, item in value.items()}
        try:
            return kind(**fields)
        except TypeError as error:
            raise ValueError(f"{_rendered(where)}: {error}") from error

    return read


def _expect(holds: bool, where: _Where, value: object) -> None:
    if not holds:
        raise _unfit(where, value)


def _unfit(where: _Where, value: object) -> ValueError:
    return ValueError(f"{_rendered(where)} cannot be {value!r}")


def _rendered(where: _Where) -> str:
    """Return the place of a field as text, such as ``SandboxRecord.plan.moves``."""
    name, *outer = where
    return f"{_rendered(outer[0])}.{name}" if outer else str(name)
