"""The netdevs that the host has lost in pods since the daemon's start.

A virtual netdev is lost when its pod deletes it, replaces it, moves it where nobody finds it, or with the pod's
namespace. A physical one comes back when its namespace ends; it is lost when its device is removed from the machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nri_rdma.attach.plan import NetdevMove
from nri_rdma.model.pod import Pod

log = logging.getLogger(__name__)

KEPT: Final = 100
"""Most netdevs that are listed; beyond it the one that was lost longest ago is left out of the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNetdev:
    """A netdev that was not there when its pod ended; `at` is in seconds since the epoch."""

    device: str
    netdev: str
    """Its name on the host."""
    kind: str
    pod: str
    sandbox: str
    why: str
    at: float


class LostNetdevs:
    """Counts and lists lost netdevs. Safe for use by several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, int], LostNetdev] = OrderedDict()
        self._count = 0

    @property
    def count(self) -> int:
        """Return how many netdevs were lost since the start."""
        return self._count

    def rows(self) -> tuple[LostNetdev, ...]:
        """Return the lost netdevs, the latest first."""
        with self._lock:
            return tuple(reversed(self._rows.values()))

    def note(self, pod: Pod, move: NetdevMove, why: str) -> None:
        """Log and remember a lost netdev. An undo that is tried again reports it again: it counts once."""
        row = LostNetdev(
            device=move.device,
            netdev=move.link.name,
            kind=move.link.kind,
            pod=str(pod),
            sandbox=pod.sandbox_id,
            why=why,
            at=self._clock(),
        )
        key = (pod.sandbox_id, move.link.ifindex)
        with self._lock:
            if key in self._rows:
                return
            self._rows[key] = row
            self._count += 1
            if len(self._rows) > KEPT:
                self._rows.popitem(last=False)
        facts = {"pod": row.pod, "device": row.device, "netdev": row.netdev, "kind": row.kind, "why": why}
        log.warning("the host has lost a netdev", extra=facts)
