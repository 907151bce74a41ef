"""The steps of an attach: each makes one change to the host and can undo it.

An undo checks the present state before it changes anything, because it may run after the whole step, after a part of
it, before it, or twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, TypeAlias

from nri_rdma.attach.ops import Op, inverses_of
from nri_rdma.attach.plan import NetdevMove, Plan, RdmaMove, ops_of
from nri_rdma.attach.port import Kernel, KernelError, Namespace, explained, raise_first
from nri_rdma.attach.rdma import bring_rdma_home
from nri_rdma.attach.return_netdev import LostError, bring_home, restore
from nri_rdma.model.same import Same

log = logging.getLogger(__name__)

OnLost = Callable[[NetdevMove, str], None]
"""Called with the move of a lost netdev, and the reason."""


def nobody_counts(_move: NetdevMove, _why: str) -> None:
    """Do nothing with a lost netdev: the default for callers that do not count them."""


Restoring: TypeAlias = Callable[[], None]
"""A function that restores the configuration of a device after its return to the host. Raises AttachError."""

_KEPT = 512
"""The number of operations whose descriptions are cached. The pods of a job share the operation objects."""
_TOLD_MAX = 50
"""The number of operations that a description names, because a link may have thousands of routes."""


class Step(Protocol):
    """One change of the host by an attach, with its undo."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    def describe(self) -> str: ...

    def do(self, kernel: Kernel, namespace: Namespace) -> None: ...

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> Restoring | None:
        """Return to the host the device that the step took; `namespace` is None if it no longer exists. Return a
        function that restores the device's configuration, or None if nothing is left to do. That function does not need
        the namespace."""
        ...


def steps_of(plan: Plan, on_lost: OnLost = nobody_counts) -> tuple[Step, ...]:
    """Return the steps of a plan in order. `on_lost` is called for each netdev that no longer exists when it is to be
    returned to the host.

    Netdevs come first, so that the undo, in opposite order, returns them last. When a netdev goes up, its RDMA device
    reads its addresses, so the RDMA device must be on the host by then.
    """
    steps: list[Step] = []
    for move in plan.moves:
        steps.append(MoveNetdev(move=move, on_lost=on_lost))
        steps.append(ConfigureNetdev(move=move))
    steps.extend(MoveRdmaDevice(move=rdma_move) for rdma_move in plan.rdma_moves)
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNetdev:
    """Moves a netdev into the pod under its new name. The undo moves it back and then restores its configuration on the
    host."""

    move: NetdevMove
    on_lost: OnLost = nobody_counts
    name: str = "move-netdev"

    @property
    def device(self) -> str:
        return self.move.device

    def describe(self) -> str:
        return f"move {self.move.link.name} ({self.move.link.mac}) into the pod as {self.move.pod_name}"

    def do(self, kernel: Kernel, namespace: Namespace) -> None:
        with _explained(f"move netdev {self.move.link.name} into the pod", self.move, namespace):
            kernel.move_link(
                kernel.host,
                self.move.link.ifindex,
                namespace,
                self.move.pod_name,
                as_ifindex=self.move.pod_ifindex,
            )

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> Restoring | None:
        with _explained(f"bring netdev {self.move.link.name} home", self.move, namespace):
            try:
                ifindex = bring_home(kernel, namespace, self.move)
            except LostError as lost:
                self.on_lost(self.move, str(lost))
                return None
        return partial(self._restore, kernel, ifindex)

    def _restore(self, kernel: Kernel, ifindex: int) -> None:
        with _explained(f"restore netdev {self.move.link.name}", self.move, None):
            restore(kernel, ifindex, self.move.link)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureNetdev:
    """Sets MTU and addresses of a netdev in the pod, takes the link up, and adds routes, neighbours and rules.

    The undo removes the rules, VRFs and reject routes, because they belong to the namespace and stay when the netdev
    leaves. Everything else leaves with the netdev.
    """

    move: NetdevMove
    name: str = "configure-netdev"

    @property
    def device(self) -> str:
        return self.move.device

    def describe(self) -> str:
        told = [_words(Same(op)) for op in ops_of(self.move)]
        more = [f"and {len(told) - _TOLD_MAX} more"] if len(told) > _TOLD_MAX else []
        left_out = self.move.inherited.left_out
        stays = f"; left on the host: {'; '.join(left_out)}" if left_out else ""
        away = f"; as asked, {'; '.join(self.move.leads_away)}" if self.move.leads_away else ""
        return f"configure {self.move.pod_name}: {', '.join([*told[:_TOLD_MAX], *more])}{stays}{away}"

    def do(self, kernel: Kernel, namespace: Namespace) -> None:
        move = self.move
        with _explained(f"configure {move.pod_name} in the pod", move, namespace):
            raise_first(kernel.apply(namespace, move.pod_ifindex, ops_of(move)))
        if move.inherited.left_out:
            facts = {"device": move.device, "netdev": move.link.name, "what": move.inherited.left_out}
            log.warning("left on the host, it does not fit the pod", extra=facts)
        if move.leads_away:
            facts = {"device": move.device, "netdev": move.link.name, "what": move.leads_away}
            log.warning("routes of the request lead the pod's cluster network over the netdev", extra=facts)

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None:
        ops = inverses_of(ops_of(self.move))
        if ops and namespace is not None:
            with _explained(f"remove the rules of {self.move.pod_name} from the pod", self.move, namespace):
                raise_first(kernel.apply(namespace, self.move.pod_ifindex, ops))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRdmaDevice:
    """Moves an RDMA device into the pod, so that nobody else can see or open it."""

    move: RdmaMove
    name: str = "move-rdma-device"

    @property
    def device(self) -> str:
        return self.move.device

    def describe(self) -> str:
        return f"move RDMA device {self.move.device} (index {self.move.index}) into the pod"

    def do(self, kernel: Kernel, namespace: Namespace) -> None:
        with _explained(f"move RDMA device {self.move.device} into the pod", self.move, namespace):
            kernel.move_rdma(kernel.host, self.move.index, namespace)

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None:
        with _explained(f"bring RDMA device {self.move.device} home", self.move, namespace):
            bring_rdma_home(kernel, namespace, self.move)


@lru_cache(_KEPT)
def _words(op: Same[Op]) -> str:
    return op.value.describe()


@contextmanager
def _explained(what: str, move: NetdevMove | RdmaMove, namespace: Namespace | None) -> Iterator[None]:
    """Turn a KernelError inside the `with` block into an AttachError that names the device, the place and the step."""
    try:
        yield
    except KernelError as error:
        path = namespace.identity.path if namespace is not None else ""
        where = path or "the host"
        raise explained(error, device=move.device, where=where, path=path, what=what) from error
