"""How many verbs objects an RDMA device can have."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaCapacity:
    """The greatest number of objects of each kind that a device can have at once, as its driver answers
    `ibv_query_device`; 0 means that it can have none. The rdma cgroup counts all these kinds together as hca_object."""

    qp: int = 0
    cq: int = 0
    mr: int = 0
    mw: int = 0
    pd: int = 0
    ah: int = 0
    srq: int = 0

    @property
    def scarcest(self) -> tuple[str, int]:
        """Return the kind with the lowest maximum, and this maximum. Kinds with 0 are ignored; the result is ("", 0) if
        all are 0."""
        told = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return min((it for it in told if it[1] > 0), key=lambda it: it[1], default=("", 0))
