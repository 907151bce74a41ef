"""Cache keys that compare by identity, because hashing or comparing what 16 links carry takes as long as the work that
the cache saves."""

from __future__ import annotations

from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Same(Generic[T_co]):
    """A cache key for a value: two keys are equal if they hold the same object. The key keeps the object alive, so no
    other object can get its id."""

    __slots__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
