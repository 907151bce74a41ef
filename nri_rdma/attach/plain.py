"""Frozen values from plain JSON values, by the types of their fields.

msgspec makes the plain values, but refuses to read a union of two types of the standard library (an IPv4 or an IPv6
address). What is read is checked: a missing, unknown or mistyped field is a ValueError that names it.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from enum import Enum
from functools import cache
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, TypeVar  # Any: types are values here

T = TypeVar("T")

_PLAIN: tuple[type, ...] = (str, int, bool, type(None))


def from_plain(kind: type[T], value: object) -> T:
    """The value of that type. Raises ValueError."""
    result: T = _read(kind, value, kind.__name__)
    return result


def _read(kind: Any, value: Any, where: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)  # a NewType is read as what it stands for
    origin = typing.get_origin(kind)
    if origin in {typing.Union, types.UnionType}:
        return _read_union(typing.get_args(kind), value, where)
    if origin in {tuple, frozenset}:
        _expect(isinstance(value, list), where, value)
        return _read_many(origin, typing.get_args(kind), value, where)
    if dataclasses.is_dataclass(kind):
        _expect(isinstance(value, dict), where, value)
        return _read_fields(kind, value, where)
    return _read_scalar(kind, value, where)


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if issubclass(kind, Enum):
        return kind(value)
    _expect(type(value) is (kind if kind in _PLAIN else str), where, value)
    if kind is bytes:
        return base64.b64decode(value, validate=True)
    if kind in {IPv4Interface, IPv6Interface}:
        result = ip_interface(value)
        _expect(isinstance(result, kind), where, value)
        return result
    _expect(kind in _PLAIN, where, value)
    return value


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    for kind in kinds:
        try:
            return _read(kind, value, where)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"{where} cannot be {value!r}")


def _read_many(origin: Any, kinds: tuple[Any, ...], values: list[Any], where: str) -> Any:
    """A tuple of any length, a tuple of a certain length, or a frozenset."""
    if origin is tuple and (len(kinds) != 2 or kinds[1] is not Ellipsis):
        _expect(len(values) == len(kinds), where, values)
        return tuple(_read(kind, item, where) for kind, item in zip(kinds, values, strict=True))
    return origin(_read(kinds[0], item, where) for item in values)


def _read_fields(kind: Any, values: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    _expect(values.keys() <= hints.keys(), where, sorted(values.keys() - hints.keys()))
    fields = {name: _read(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(holds: bool, where: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{where} cannot be {value!r}")
