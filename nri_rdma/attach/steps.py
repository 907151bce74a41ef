"""The steps of an attach: each does one thing to the host, and knows how to undo it.

Undo looks before it acts: it may run after the step, after half of it, after none of it, or twice.
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
"""Called with the move of a netdev that is lost, and why."""


def nobody_counts(_move: NetdevMove, _why: str) -> None:
    """Count nothing: the caller does not want to know."""


Restoring: TypeAlias = Callable[[], None]
"""Makes something that is back on the host what it was. Raises AttachError."""

_KEPT = 512
"""The words of so many operations are kept: the pods of a job have the same objects in common."""
_TOLD_MAX = 50
"""Operations that a description names: a link may have thousands of routes."""


class Step(Protocol):
    """One change of the host."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    def describe(self) -> str: ...

    def do(self, kernel: Kernel, namespace: Namespace) -> None: ...

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> Restoring | None:
        """Bring back to the host what the step took from it; `namespace` is None when it no longer exists. Return what
        makes it there what it was: for that the namespace is no longer needed. None: that is done."""
        ...


def steps_of(plan: Plan, on_lost: OnLost = nobody_counts) -> tuple[Step, ...]:
    """The steps of a plan in their order. `on_lost` is called for each netdev that does not exist any more when it is
    to be brought home.

    Netdevs first, so that on the way back they are last: raising one makes its RDMA device scan its addresses, which
    must be at home by then.
    """
    steps: list[Step] = []
    for move in plan.moves:
        steps.append(MoveNetdev(move=move, on_lost=on_lost))
        steps.append(ConfigureNetdev(move=move))
    steps.extend(MoveRdmaDevice(move=rdma_move) for rdma_move in plan.rdma_moves)
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNetdev:
    """Moves a netdev into the pod under its new name; on the host it is then restored to everything the host had."""

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
    """Sets MTU and addresses in the pod, raises the netdev, and gives it routes, neighbours and rules.

    Its undo removes the rules: they are the namespace's, and stay when the netdev goes. All else goes with the netdev.
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
    """Moves an RDMA device into the pod: nobody else sees or opens it then."""

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
    """Turns the kernel's refusal into an error that names device, place and step."""
    try:
        yield
    except KernelError as error:
        path = namespace.identity.path if namespace is not None else ""
        where = path or "the host"
        raise explained(error, device=move.device, where=where, path=path, what=what) from error
