"""The journal record of one attach: the pod, its namespace, the plan, and the devices that it gets."""

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
    """A stage in the life of an attachment. After `returning` only `gone` follows."""

    PLANNED = "planned"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    RETURNING = "returning"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The journal record of one attach. `namespace` is None if nothing moves. `process` is set only if the pod ends
    when its process ends (liveness.lives_by_process)."""

    pod: Pod
    state: Phase
    namespace: NamespaceIdentity | None
    plan: Plan
    attached: tuple[AttachedRequest, ...]
    rdma_cm: CharDevice | None
    process: ProcessIdentity | None = None
    part: str = ""
    """"" for the devices that were requested before the sandbox started; otherwise the container that brought further
    devices."""
    gids: Gids = NO_GIDS
    """The GIDs that the ports send with. They are not in the journal: a daemon reads them again after its start."""

    @property
    def key(self) -> str:
        """Return the key of the record in the journal and in the reservations."""
        return attach_key(self.pod.sandbox_id, self.part)

    @property
    def holdings(self) -> tuple[tuple[DeviceId, Holding], ...]:
        """Return the devices of the attachment, each with a Holding: which pod has it, in which mode."""
        return tuple(
            holding
            for request in self.attached
            for holding in holdings_of(str(self.pod), request.admitted, (item.device.id for item in request.devices))
        )

    @property
    def isolation(self) -> Isolation | None:
        """Return HARD if the kernel hides all exclusive devices of the pod from other pods, SOFT if it does not; None
        if the pod has no exclusive device."""
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
        """Return the record with `container` among the containers that get the devices of `name`, a CDI device or a
        share. If not `is_covered`, the container is removed from them."""
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
        """Return the names of the devices, comma-separated, for log lines and errors."""
        return ", ".join(item.device.name for request in self.attached for item in request.devices)


def attach_key(sandbox_id: str, part: str) -> str:
    """Return the key of an attachment: the sandbox id. If a container brought devices after the sandbox started, "+"
    and the container's name (`part`) follow."""
    return f"{sandbox_id}+{part}" if part else sandbox_id


_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
"""Keys that can safely be file names, also with a suffix."""


def refuse_unusable(key: str) -> None:
    """Raise StateError if the key cannot be a file name. The ids that runtimes make are hexadecimal."""
    if not _KEY.fullmatch(key):
        raise StateError(
            ErrorCode.STATE_UNREADABLE,
            f"{key!r} cannot be the id of a sandbox",
            hint="use ids of letters, digits, _ . and -, as runtimes make them",
        )
