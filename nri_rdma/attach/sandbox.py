"""One sandbox's attach: its state, what it holds, and who waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from nri_rdma.attach.port import Namespace
from nri_rdma.attach.record import SandboxRecord, State, attach_key
from nri_rdma.inject import AttachedRequest
from nri_rdma.model.pod import Pod
from nri_rdma.placement import Placed

KEPT_CONTAINERS = 256
"""Names of containers that are remembered per sandbox: ephemeral ones may be added for as long as a pod lives."""


def cdi_devices_of(requests: Iterable[AttachedRequest | Placed]) -> frozenset[str]:
    """The CDI devices that these requests came with."""
    return frozenset(item.admitted.request.cdi_device for item in requests) - {""}


class Unstarted:
    """How often a container was answered for without a start, and when first, in seconds of `time.monotonic`; whether
    the guard has verified it since."""

    __slots__ = ("answers", "since", "verified")

    def __init__(self) -> None:
        self.answers = 1
        self.since = time.monotonic()
        self.verified = False


class Sandbox:
    """One sandbox that has, gets or had devices. Its worker writes it; others read it.

    `part` is "" for what was known when the sandbox started, else the container that came with more (a CDI device)."""

    def __init__(self, pod: Pod, record: SandboxRecord | None = None, part: str = "") -> None:
        self.pod = pod
        self.part = record.part if record is not None else part
        self.cdi_devices = cdi_devices_of(record.attached) if record is not None else frozenset()
        """The CDI devices for which it attaches, or has attached."""
        self.state = record.state if record is not None else State.PLANNED
        self.record = record
        self.namespace: Namespace | None = None
        self.attach_done: Future[None] = Future()
        self.numbers_from = 0
        """The newest of the kernel's device events when the character devices' numbers were read."""
        self.looked_again: Future[None] | None = None
        """The last time that they were read anew; None: they are as the attach found them."""
        self.undo_done: Future[None] | None = None
        self.undo_error = ""
        self.cancel_retry: Callable[[], None] | None = None
        self.is_home = False
        """Undone, forgotten by the journal, its namespace let go; only on_gone is missing."""
        self.steps_done = 0
        self.steps_total = 0
        self.containers: dict[str, str] = {}
        """The cgroups path of each container by its name: a container that is made again takes the old one's place."""

        self.unstarted: dict[str, Unstarted] = {}
        """The containers for which CreateContainer was answered and StartContainer has not come, by name."""

        self.unguarded: set[str] = set()
        """The containers that started after our answer without that a guard asked, by name."""

    def answered(self, name: str) -> int:
        """CreateContainer of this container is answered; how often since it last started."""
        known = self.unstarted.get(name)
        if known is not None:
            known.answers += 1
            known.verified = False
            return known.answers
        if len(self.unstarted) < KEPT_CONTAINERS:
            self.unstarted[name] = Unstarted()
        return 1

    def started(self, name: str) -> None:
        """StartContainer of this container has come: who guards it has asked before."""
        answered = self.unstarted.pop(name, None)
        if answered is None:
            return
        if answered.verified:
            self.unguarded.discard(name)
        elif len(self.unguarded) < KEPT_CONTAINERS:
            self.unguarded.add(name)

    def remember_container(self, name: str, cgroups_path: str) -> None:
        """For those who ask what it uses. Forgotten with the sandbox; beyond a bound nothing more is remembered."""
        if name in self.containers or len(self.containers) < KEPT_CONTAINERS:
            self.containers[name] = cgroups_path

    def covers(self, cdi_device: str, container: str) -> bool:
        """Whether the container gets what was attached for that CDI device; False as long as that is not known."""
        if self.record is None:
            return False
        requests = [item.admitted.request for item in self.record.attached]
        return all(it.scope.covers(container) for it in requests if it.cdi_device == cdi_device)

    @property
    def key(self) -> str:
        """Its name in journal and allocations."""
        return attach_key(self.pod.sandbox_id, self.part)
