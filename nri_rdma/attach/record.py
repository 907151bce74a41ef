"""What is known of one sandbox: the pod, its namespace, the plan and what it was given."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import NamespaceIdentity, ProcessIdentity
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.placement import Holding, holdings_of
from nri_rdma.decide.port_gids import NO_GIDS, Gids
from nri_rdma.errors import ErrorCode, StateError
from nri_rdma.model.device import CharDevice, DeviceId
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Isolation, Mode


class Phase(StrEnum):
    """A stage in the life of a sandbox's attachment; nothing follows `returning` but `gone`."""

    PLANNED = "planned"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    RETURNING = "returning"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The journal's entry. `namespace` is None where nothing moves; `process` is known of a pod that lives by
    it (liveness.lives_by_process)."""

    pod: Pod
    state: Phase
    namespace: NamespaceIdentity | None
    plan: Plan
    attached: tuple[AttachedRequest, ...]
    rdma_cm: CharDevice | None
    process: ProcessIdentity | None = None
    part: str = ""
    """Which of the sandbox's attaches: "" the one at its start, else the container that came with more."""
    gids: Gids = NO_GIDS
    """Those by which its ports send. The journal does not have them: a daemon that starts reads them anew."""

    @property
    def key(self) -> str:
        """Return its name in journal and reservations."""
        return attach_key(self.pod.sandbox_id, self.part)

    @property
    def holdings(self) -> tuple[tuple[DeviceId, Holding], ...]:
        """Return the devices that this attachment holds, and how."""
        return tuple(
            holding
            for request in self.attached
            for holding in holdings_of(str(self.pod), request.admitted, (item.device.id for item in request.devices))
        )

    @property
    def isolation(self) -> Isolation | None:
        """Return HARD where the kernel hides all that the pod has alone from others, SOFT where it does not; None where
        the pod has nothing alone."""
        moved = {move.index for move in self.plan.rdma_moves}
        alone = [
            item.device.kernel_index
            for request in self.attached
            if request.admitted.mode is Mode.EXCLUSIVE
            for item in request.devices
        ]
        if not alone:
            return None
        return Isolation.HARD if all(index in moved for index in alone) else Isolation.SOFT

    def covering(self, name: str, container: str, is_covered: bool) -> SandboxRecord:
        """Return the same with one more container that has this CDI device or share, or without that container."""
        return replace(
            self,
            attached=tuple(
                replace(
                    item, admitted=replace(item.admitted, request=item.admitted.request.covering(container, is_covered))
                )
                if item.admitted.request.is_for(name)
                else item
                for item in self.attached
            ),
        )

    @property
    def device_names(self) -> str:
        """Return the names of its devices, for people."""
        return ", ".join(item.device.name for request in self.attached for item in request.devices)


def attach_key(sandbox_id: str, part: str) -> str:
    """Return the name of one attach of a sandbox; of the one at its start, the sandbox's own."""
    return f"{sandbox_id}+{part}" if part else sandbox_id


_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Keys that are safe as names of files, also with an ending."""


def refuse_unusable(key: str) -> None:
    """Raise StateError for a key that cannot be the name of a file. Runtimes make hexadecimal ids."""
    if not _KEY.fullmatch(key):
        raise StateError(
            ErrorCode.STATE_UNREADABLE,
            f"{key!r} cannot be the id of a sandbox",
            hint="use ids of letters, digits, _ . and -, as runtimes make them",
        )
