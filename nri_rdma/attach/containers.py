"""The containers of a sandbox as far as later calls need them: cgroups, starts without a guard, and proofs of RDMA."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from nri_rdma.decide.inject import AttachedRequest

KEPT_CONTAINERS = 256
"""The number of container names remembered per sandbox. It is bounded because ephemeral containers may be added for as
long as a pod lives."""


class Unstarted:
    """A container whose CreateContainer was answered and which has not started: how often it was answered, when for the
    first time (in seconds of `time.monotonic`), and whether the guard has verified it since the last answer."""

    __slots__ = ("answers", "since", "verified")

    def __init__(self) -> None:
        self.answers = 1
        self.since = time.monotonic()
        self.verified = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProof:
    """The result of proving, before a container starts, that RDMA works in it. `ports` has one sentence per port;
    `code` and `why` say why the proof failed, and are "" if it succeeded. `at` is in seconds since the epoch."""

    container_id: str
    ports: tuple[str, ...]
    took_ms: float
    at: float
    code: str = ""
    why: str = ""


class SandboxContainers:
    """Remembers facts about containers by name, for at most KEPT_CONTAINERS of them."""

    def __init__(self) -> None:
        self.cgroups: dict[str, str] = {}
        """The cgroups path of each container. A container that is created again replaces the path of its
        predecessor."""
        self.unstarted: dict[str, Unstarted] = {}
        """The containers whose CreateContainer was answered and whose StartContainer has not come."""
        self.unguarded: set[str] = set()
        """The containers that should have a guard, but started without being verified by it."""

        self.proofs: dict[str, ContainerProof] = {}
        """The last proof of each container. A container that is created again has another id and needs a new proof."""

    def is_proven(self, name: str, container_id: str) -> bool:
        """Return whether RDMA was proven to work in the container with this name and id."""
        known = self.proofs.get(name)
        return known is not None and known.container_id == container_id and not known.code

    def remember_proof(self, name: str, proof: ContainerProof) -> None:
        """Remember the result of a proof. Beyond KEPT_CONTAINERS the oldest is forgotten."""
        self.proofs.pop(name, None)
        self.proofs[name] = proof
        if len(self.proofs) > KEPT_CONTAINERS:
            del self.proofs[next(iter(self.proofs))]

    def remember(self, name: str, cgroups_path: str) -> None:
        """Remember the cgroup of a container, so that its use of RDMA resources can be read later."""
        if name in self.cgroups or len(self.cgroups) < KEPT_CONTAINERS:
            self.cgroups[name] = cgroups_path

    def answered(self, name: str) -> int:
        """Record an answer to CreateContainer for this container. Return the number of answers since the container last
        started."""
        known = self.unstarted.get(name)
        if known is not None:
            known.answers += 1
            known.verified = False
            return known.answers
        if len(self.unstarted) < KEPT_CONTAINERS:
            self.unstarted[name] = Unstarted()
        return 1

    def started(self, name: str, attached: Iterable[AttachedRequest]) -> None:
        """Record that StartContainer came for this container. A guard asks the daemon before this call, so a container
        that should have a guard and was not verified by now counts as unguarded."""
        answered = self.unstarted.pop(name, None)
        if answered is None or not _is_guarded(name, attached):
            return
        if answered.verified:
            self.unguarded.discard(name)
        elif len(self.unguarded) < KEPT_CONTAINERS:
            self.unguarded.add(name)


def _is_guarded(container: str, attached: Iterable[AttachedRequest]) -> bool:
    """Return whether the container has a guard, on a node that uses guards. The guard of a runtime handler checks pods
    with annotations only; the guard of shares runs in containers that have shares."""
    requests = [item.admitted.request for item in attached]
    return any(not it.cdi_device and (not it.shares or it.scope.covers(container)) for it in requests)
