"""How many verbs objects an RDMA device can have."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaCapacity:
    """The most objects of each kind that a device can have at once, as its driver tells `ibv_query_device`; 0 means
    that it has none of this kind. These are the kinds that the rdma cgroup counts together as hca_object and that the
    driver tells a number of; flows, XRC domains and counters it counts too, and there is no number."""

    qp: int = 0
    cq: int = 0
    mr: int = 0
    mw: int = 0
    pd: int = 0
    ah: int = 0
    srq: int = 0

    @property
    def scarcest(self) -> tuple[str, int]:
        """Return the kind that the device has the fewest of, with their number; ("", 0) when it has none at all."""
        told = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return min((it for it in told if it[1] > 0), key=lambda it: it[1], default=("", 0))
