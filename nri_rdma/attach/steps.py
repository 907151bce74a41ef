"""The steps of an attach: each does one thing to the host, and knows how to undo it.

Undo looks before it acts: it may run after the step, after half of it, after none of it, or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from nri_rdma.attach.plan import NetdevMove, Plan
from nri_rdma.attach.port import Captured, Kernel, KernelError, LinkState, Namespace
from nri_rdma.errors import AttachError


class Step(Protocol):
    """One change of the host."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    def describe(self) -> str: ...

    def do(self, kernel: Kernel, namespace: Namespace) -> None: ...

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None:
        """Bring the host back; `namespace` is None when it no longer exists."""
        ...


def steps_of(plan: Plan) -> tuple[Step, ...]:
    """The steps of a plan in their order."""
    steps: list[Step] = []
    for move in plan.moves:
        steps.append(MoveNetdev(move=move))
        steps.append(ConfigureNetdev(move=move))
    return tuple(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNetdev:
    """Moves a netdev into the pod under its new name; the way back restores everything the host had."""

    move: NetdevMove
    name: str = "move-netdev"

    @property
    def device(self) -> str:
        return self.move.device

    def describe(self) -> str:
        return f"move {self.move.link.name} ({self.move.link.mac}) into the pod as {self.move.pod_name}"

    def do(self, kernel: Kernel, namespace: Namespace) -> None:
        with _explained(f"move netdev {self.move.link.name} into the pod", self.move, namespace):
            kernel.move_link(kernel.host, self.move.link.ifindex, namespace, self.move.pod_name)

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None:
        wanted = self.move.link
        with _explained(f"bring netdev {wanted.name} home", self.move, namespace):
            home = find_link(kernel.links(kernel.host), self.move)
            if home is None and namespace is not None:
                there = find_link(kernel.links(namespace), self.move)
                if there is not None:
                    kernel.move_link(namespace, there.ifindex, kernel.host, wanted.name)
                    home = find_link(kernel.links(kernel.host), self.move)
            if home is None:
                if namespace is None and not wanted.parent:
                    return  # a virtual netdev dies with its namespace: there is nothing left to bring home
                raise KernelError("find the netdev", 19, "neither on the host nor in the pod")
            restore(kernel, home.ifindex, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureNetdev:
    """Sets MTU and addresses in the pod and raises the netdev.

    Its own undo only takes the netdev down: the way home of MoveNetdev restores all that is changed here.
    """

    move: NetdevMove
    name: str = "configure-netdev"

    @property
    def device(self) -> str:
        return self.move.device

    def describe(self) -> str:
        mtu = f" mtu {self.move.mtu}" if self.move.mtu is not None else ""
        addresses = "".join(f" {address}" for address in self.move.addresses)
        return f"configure {self.move.pod_name}:{mtu}{addresses} up"

    def do(self, kernel: Kernel, namespace: Namespace) -> None:
        move = self.move
        with _explained(f"configure {move.pod_name} in the pod", move, namespace):
            link = find_link(kernel.links(namespace), move)
            if link is None:
                raise KernelError("find the netdev", 19, "it is not in the pod")
            if move.mtu is not None:
                kernel.set_link(namespace, link.ifindex, mtu=move.mtu)
            for address in move.addresses:
                kernel.add_address(namespace, link.ifindex, address)
            kernel.set_link(namespace, link.ifindex, up=True)

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None:
        if namespace is None:
            return
        with _explained(f"take {self.move.pod_name} down", self.move, namespace):
            link = find_link(kernel.links(namespace), self.move)
            if link is not None and link.up:
                kernel.set_link(namespace, link.ifindex, up=False)


def find_link(links: tuple[LinkState, ...], move: NetdevMove) -> LinkState | None:
    """The moved netdev among `links`, whatever a pod with NET_ADMIN made of its name and address.

    What userspace cannot change decides: the permanent address and the parent device. A virtual netdev has neither:
    there its MAC counts, then its index together with its kind.
    """
    wanted = move.link
    tests: list[Callable[[LinkState], bool]] = []
    if wanted.permanent_mac:
        tests.append(lambda link: link.permanent_mac == wanted.permanent_mac and link.parent == wanted.parent)
    elif wanted.parent:
        tests.append(lambda link: link.parent == wanted.parent)
    else:
        tests.append(lambda link: link.kind == wanted.kind and link.mac == wanted.mac and not link.parent)
        tests.append(lambda link: link.kind == wanted.kind and link.ifindex == wanted.ifindex and not link.parent)
    for test in tests:
        found = [link for link in links if test(link)]
        if len(found) > 1:
            found = [link for link in found if link.name in {wanted.name, move.pod_name}] or found
        if found:
            return found[0]
    return None


def restore(kernel: Kernel, ifindex: int, wanted: LinkState) -> None:
    """Make the host's link `ifindex` what it was. Order matters: routes need addresses, both need the link up."""
    host = kernel.host
    found = kernel.capture(host, ifindex)
    if found.name != wanted.name or found.mac != wanted.mac:
        kernel.set_link(host, ifindex, up=False)  # neither can change while the link is up
        kernel.set_link(host, ifindex, name=wanted.name, mac=wanted.mac)
    kernel.set_alt_names(
        host,
        ifindex,
        add=tuple(name for name in wanted.alt_names if name not in found.alt_names),
        remove=tuple(name for name in found.alt_names if name not in wanted.alt_names),
    )
    kernel.set_link(host, ifindex, mtu=wanted.mtu, txqlen=wanted.txqlen, alias=wanted.alias, up=wanted.up)
    _restore_captured(kernel, ifindex, wanted.addresses, lambda: kernel.capture(host, ifindex).addresses)
    _restore_captured(kernel, ifindex, wanted.neighbours, lambda: kernel.capture(host, ifindex).neighbours)
    _restore_captured(kernel, ifindex, wanted.routes, lambda: kernel.capture(host, ifindex).routes)


def _restore_captured(
    kernel: Kernel, ifindex: int, wanted: tuple[Captured, ...], present: Callable[[], tuple[Captured, ...]]
) -> None:
    """Remove what was not there, add what is missing; what the kernel made by itself and is the same stays."""
    found = {thing.text: thing for thing in present()}
    texts = {thing.text for thing in wanted}
    for thing in found.values():
        if thing.text not in texts and not thing.kernel_made:
            kernel.remove(kernel.host, ifindex, thing)
    for thing in wanted:
        if thing.text not in found:
            kernel.replay(kernel.host, ifindex, thing)


@contextmanager
def _explained(what: str, move: NetdevMove, namespace: Namespace | None) -> Iterator[None]:
    """Turns the kernel's refusal into an error that names device, place and step."""
    try:
        yield
    except KernelError as error:
        where = namespace.identity.path if namespace is not None else "the host"
        raise AttachError(f"{what}: {error}", device=move.device, where=where, errno=error.errno) from error
