"""Facts about a sandbox's containers that later calls need: cgroups, starts that no guard checked, and the results of
RDMA tests.

The guard is an OCI hook that keeps a container from starting without its devices.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from nri_rdma.decide.inject import AttachedRequest

KEPT_CONTAINERS = 256
"""The number of container names remembered per sandbox. It is bounded because ephemeral containers may be added for as
long as a pod lives."""


class Unstarted:
    """A container whose CreateContainer was answered and which has not started. `answers` counts the answers, and
    `since` is the time of the first one, in seconds of `time.monotonic`. `verified` is whether the guard, an OCI hook
    that keeps a container from starting without its devices, has checked it since the last answer."""

    __slots__ = ("answers", "since", "verified")

    def __init__(self) -> None:
        self.answers = 1
        self.since = time.monotonic()
        self.verified = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProof:
    """The result of the test, made before a container starts, that RDMA works in it. `ports` has one sentence per port;
    `code` and `why` say why the test failed, and are "" if it succeeded. `at` is in seconds since the epoch."""

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
        """The containers that started without a check by the guard, although they should have one. The guard is an OCI
        hook that keeps a container from starting without its devices."""

        self.proofs: dict[str, ContainerProof] = {}
        """The result of each container's last RDMA test, by container name. A container that is created again has
        another id and is tested anew."""

    def is_proven(self, name: str, container_id: str) -> bool:
        """Return whether the RDMA test of the container with this name and id succeeded."""
        known = self.proofs.get(name)
        return known is not None and known.container_id == container_id and not known.code

    def remember_proof(self, name: str, proof: ContainerProof) -> None:
        """Remember whether RDMA worked in the container when it was tested before its start. Beyond KEPT_CONTAINERS
        results the oldest is forgotten."""
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
        """Record that the runtime called StartContainer for this container. If the guard, an OCI hook that keeps a
        container from starting without its devices, should have checked the container and did not, the container counts
        as unguarded."""
        answered = self.unstarted.pop(name, None)
        if answered is None or not _is_guarded(name, attached):
            return
        if answered.verified:
            self.unguarded.discard(name)
        elif len(self.unguarded) < KEPT_CONTAINERS:
            self.unguarded.add(name)


def _is_guarded(container: str, attached: Iterable[AttachedRequest]) -> bool:
    """Return whether the guard hook should check the container, on a node that has it; the guard keeps a container from
    starting without its devices. The hook of a runtime handler checks pods with annotations. The hook of device plugin
    resources checks containers that have shares."""
    requests = [item.admitted.request for item in attached]
    return any(not it.cdi_device and (not it.shares or it.scope.covers(container)) for it in requests)
