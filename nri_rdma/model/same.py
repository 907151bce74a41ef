"""Cache keys that compare by identity. To compare the values themselves would take as long as the work that the cache
saves, because a plan may contain all addresses and routes of 16 links."""

from __future__ import annotations

from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Same(Generic[T_co]):
    """A cache key for a value: two keys are equal if they hold one and the same object. A key keeps its object alive,
    so no other object can get the object's id."""

    __slots__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
