"""The containers of a sandbox, as far as somebody asks for them later: their cgroups, and whether they started."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from nri_rdma.decide.inject import AttachedRequest

KEPT_CONTAINERS = 256
"""Names of containers that are remembered per sandbox: ephemeral ones may be added for as long as a pod lives."""


class Unstarted:
    """A container that did not start after our answer: how often we answered for it, when we first did (seconds of
    `time.monotonic`), and whether the guard has verified it since."""

    __slots__ = ("answers", "since", "verified")

    def __init__(self) -> None:
        self.answers = 1
        self.since = time.monotonic()
        self.verified = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProof:
    """The outcome of the proof of a container before its start: `ports` say in words what was proven of each, `code`
    and `why` are "" where RDMA works. `at` is in seconds since the epoch."""

    container_id: str
    ports: tuple[str, ...]
    took_ms: float
    at: float
    code: str = ""
    why: str = ""


class SandboxContainers:
    """Remembers containers by their names; beyond a bound nothing more."""

    def __init__(self) -> None:
        self.cgroups: dict[str, str] = {}
        """The cgroups path of each: a container that is made again takes the old one's place."""
        self.unstarted: dict[str, Unstarted] = {}
        """Those for which CreateContainer was answered and StartContainer has not come."""
        self.unguarded: set[str] = set()
        """Those that started after we answered although no guard verified them."""

        self.proofs: dict[str, ContainerProof] = {}
        """What came of the proof of each: a container that is made again has another id, and is proven again."""

    def is_proven(self, name: str, container_id: str) -> bool:
        """Return whether RDMA was proven to work in the container."""
        known = self.proofs.get(name)
        return known is not None and known.container_id == container_id and not known.code

    def remember_proof(self, name: str, proof: ContainerProof) -> None:
        """Remember what came of a proof. Beyond a bound the oldest is forgotten."""
        self.proofs.pop(name, None)
        self.proofs[name] = proof
        if len(self.proofs) > KEPT_CONTAINERS:
            del self.proofs[next(iter(self.proofs))]

    def remember(self, name: str, cgroups_path: str) -> None:
        """Remember the cgroup of a container, for those who ask what the container uses."""
        if name in self.cgroups or len(self.cgroups) < KEPT_CONTAINERS:
            self.cgroups[name] = cgroups_path

    def answered(self, name: str) -> int:
        """Record that CreateContainer of this container is answered; return how often since it last started."""
        known = self.unstarted.get(name)
        if known is not None:
            known.answers += 1
            known.verified = False
            return known.answers
        if len(self.unstarted) < KEPT_CONTAINERS:
            self.unstarted[name] = Unstarted()
        return 1

    def started(self, name: str, attached: Iterable[AttachedRequest]) -> None:
        """Record that StartContainer of this container has come: its guard, if it has one, has asked before."""
        answered = self.unstarted.pop(name, None)
        if answered is None or not _is_guarded(name, attached):
            return
        if answered.verified:
            self.unguarded.discard(name)
        elif len(self.unguarded) < KEPT_CONTAINERS:
            self.unguarded.add(name)


def _is_guarded(container: str, attached: Iterable[AttachedRequest]) -> bool:
    """Return whether a guard would come to the container, if the node has one. The guard of a runtime handler sees
    annotations, so of a pod without them nothing can be said; that of shares comes to the containers that have some."""
    requests = [item.admitted.request for item in attached]
    return any(not it.cdi_device and (not it.shares or it.scope.covers(container)) for it in requests)
