"""Values that are known by their identity: to compare or hash what 16 links carry would take as long as to use it."""

from __future__ import annotations

from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Same(Generic[T_co]):
    """A key for a cache: two are equal if they have one and the same value, which the cache so keeps."""

    __slots__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
