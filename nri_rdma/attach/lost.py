"""The netdevs that the host has lost since the daemon's start, because they could not be returned from a pod.

A virtual netdev is lost if its pod deletes it, replaces it or moves it to an unknown namespace, or if the pod's
namespace ends. A physical one returns when the namespace ends; it is lost only if its device is removed from the
machine.
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
"""The greatest number of netdevs in the list; beyond it the oldest entry is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNetdev:
    """A netdev that did not exist any more when its pod ended. `at` is in seconds since the epoch."""

    device: str
    netdev: str
    """Its name on the host."""
    kind: str
    pod: str
    sandbox: str
    why: str
    at: float


class LostNetdevs:
    """The list and the number of lost netdevs. Safe for use by several threads."""

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
        """Log a lost netdev and add it to the list. A retried undo reports a netdev again; it still counts once."""
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
