"""Where something may happen to a pod with two devices: every boundary of its attach and of its return.

The names are the product's (nri_rdma/attach/transaction.py); a run that does not pass one of them fails.
"""

from dataclasses import dataclass
from enum import StrEnum

DEVICES = ("mlx5_0", "mlx5_1")
_STEPS = tuple((step, device) for device in DEVICES for step in ("move-netdev", "configure-netdev"))


class Way(StrEnum):
    """On which way it happens."""

    THERE = "there"
    """The pod starts."""
    ROLLBACK = "rollback"
    """The last step of its attach fails, and what was done is undone."""
    BACK = "back"
    """The pod is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A boundary; `passes` is how often one of that name is passed before it is meant."""

    way: Way
    name: str
    passes: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether StopPodSandbox has been answered by then: the devices are on the host."""
        return self.way is Way.BACK and self.name.partition(" ")[2].startswith(("restore", "forget-journal"))

    def __str__(self) -> str:
        return f"{self.way}: {'second ' if self.passes else ''}{self.name}"


def _around(way: Way, *names: str, passes: int = 0) -> tuple[Place, ...]:
    return tuple(Place(way=way, name=f"{when} {name}", passes=passes) for name in names for when in ("before", "after"))


THERE = (
    *_around(Way.THERE, "plan", "write-journal"),
    *_around(Way.THERE, *(f"{step} {device}" for step, device in _STEPS)),
    *_around(Way.THERE, "resolve-numbers"),
    *_around(Way.THERE, "write-journal", passes=1),
)


def _returning(way: Way) -> tuple[Place, ...]:
    undos = (f"undo {step} {device}" for step, device in reversed(_STEPS))
    written = _around(way, "write-journal", passes=1 if way is Way.ROLLBACK else 0)
    restored = (f"restore {device}" for device in reversed(DEVICES))
    return (*written, *_around(way, *undos), *_around(way, *restored), *_around(way, "forget-journal"))


ROLLBACK = _returning(Way.ROLLBACK)
BACK = _returning(Way.BACK)
EVERYWHERE = (*THERE, *ROLLBACK, *BACK)

ROLLBACK_AFTER = f"after configure-netdev {DEVICES[-1]}"
"""An error there has everything undone."""


def is_between_the_steps(places: tuple[str, ...]) -> bool:
    """Whether a process that passed these boundaries of one attach or return ended between its first and last step."""
    there = "after move-netdev mlx5_0" in places and f"after configure-netdev {DEVICES[-1]}" not in places
    first_undone = f"after undo configure-netdev {DEVICES[-1]}" in places
    return there or (first_undone and f"after restore {DEVICES[0]}" not in places)
