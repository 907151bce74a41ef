"""Maps each operation (a class in attach.ops) to the kernel request that performs it, and sends the requests in one of
three ways.

Consecutive operations of one way are sent together: several rtnetlink requests in one datagram, or several writes to
/proc/sys/net during one stay of the thread in the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Final, TypeAlias, TypeVar

from nri_rdma.attach.ops import (
    AddAddress,
    AddAltName,
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    DetachXdp,
    DropAltName,
    DropVrf,
    Inherit,
    JoinVrf,
    Op,
    Remove,
    RemoveRejectRoute,
    RemoveRule,
    RenameRdma,
    Restore,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
    SetTuning,
)
from nri_rdma.attach.port import KernelError, Refused
from nri_rdma.host.netlink.links.ethtool import EthtoolSocket
from nri_rdma.host.netlink.links.link_state import add_alt_name_request, change_request, drop_alt_name_request
from nri_rdma.host.netlink.links.sysctls import write_sysctl
from nri_rdma.host.netlink.links.tcx import detach_tcx
from nri_rdma.host.netlink.links.vrf import drop_vrf, join_vrf
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace, asked, inside
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket, visit
from nri_rdma.host.netlink.restore.link_contents import add_address_request
from nri_rdma.host.netlink.restore.replay import (
    detach_xdp_requests,
    inherit_request,
    remove_request,
    restore_request,
    settings_request,
)
from nri_rdma.host.netlink.routes.route_requests import (
    add_neighbour_request,
    add_reject_request,
    add_route_request,
    add_rule_request,
    remove_reject_request,
    remove_rule_request,
)
from nri_rdma.host.netlink.sockets.route_socket import Request, RouteSocket
from nri_rdma.model.same import Same

T = TypeVar("T")


_KEPT = 512
"""The number of encoded requests to remember. The pods of a job often have operations in common, which are then encoded
only once."""


@dataclass(frozen=True, slots=True)
class Datagram:
    """The table entry for an operation that consists of rtnetlink requests, which `requests` encodes. The thread need
    not enter the namespace: the requests go through a socket that was opened in it."""

    requests: Callable[[int, Op], tuple[Request, ...]]


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """The table entry for an operation that `work` performs, while the calling thread is in the namespace."""

    work: Callable[[RouteSocket, int, Op], None]


@dataclass(frozen=True, slots=True)
class OverRdma:
    """The table entry for an operation that `work` performs by a netlink request to the RDMA subsystem."""

    work: Callable[[RdmaSocket, int, Op], None]


Codec: TypeAlias = Datagram | NamespaceEntry | OverRdma


def apply(namespace: HeldNamespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
    """Try all operations in order on the link, or for RDMA operations the RDMA device, with number `index`. Return the
    operations that the kernel refused, each with its error. Never raises KernelError."""
    refused: list[Refused] = []
    for _, group in groupby(ops, lambda op: type(CODECS[type(op)])):
        together = tuple(group)
        try:
            refused += _try_together(namespace, index, together)
        except KernelError as error:  # no access or no answer: it is unknown which of them were done
            refused += (Refused(op=op, error=error) for op in together)
    return tuple(refused)


def _try_together(namespace: HeldNamespace, index: int, ops: Sequence[Op]) -> list[Refused]:
    """Try consecutive operations that are sent in one way, and return those that the kernel refused. Raises KernelError
    if the namespace cannot be used at all."""
    operation = f"set link {index}"
    match CODECS[type(ops[0])]:
        case Datagram():
            return asked(namespace, operation, lambda route: _send(route, index, ops))
        case NamespaceEntry():
            return inside(namespace, operation, lambda route: _work(route, index, ops))
        case OverRdma():
            return visit(namespace, f"set RDMA device {index}", lambda rdma: _ask(rdma, index, ops))


def _send(route: RouteSocket, index: int, ops: Sequence[Op]) -> list[Refused]:
    """Send the requests of these operations together, and return the refused operations. An operation may have several
    failed requests: its first error is returned."""
    requests = [
        (position, request)
        for position, op in enumerate(ops)
        if isinstance(codec := CODECS[type(op)], Datagram)
        for request in codec.requests(index, op)
    ]
    first: dict[int, KernelError] = {}
    for number, error in sorted(route.try_all([request for _, request in requests]).items()):
        first.setdefault(requests[number][0], error)
    return [Refused(op=ops[position], error=error) for position, error in first.items()]


def _work(route: RouteSocket, index: int, ops: Sequence[Op]) -> list[Refused]:
    works = [(op, codec.work) for op in ops if isinstance(codec := CODECS[type(op)], NamespaceEntry)]
    return _each((op, partial(work, route, index, op)) for op, work in works)


def _ask(rdma: RdmaSocket, index: int, ops: Sequence[Op]) -> list[Refused]:
    works = [(op, codec.work) for op in ops if isinstance(codec := CODECS[type(op)], OverRdma)]
    return _each((op, partial(work, rdma, index, op)) for op, work in works)


def _each(works: Iterable[tuple[Op, Callable[[], None]]]) -> list[Refused]:
    refused = []
    for op, work in works:
        try:
            work()
        except KernelError as error:
            refused.append(Refused(op=op, error=error))
    return refused


def _one(kind: type[T], request: Callable[[int, T], Request]) -> Datagram:
    return Datagram(lambda index, op: (request(index, _as(kind, op)),))


def _anywhere(kind: type[T], request: Callable[[T], Request]) -> Datagram:
    """Return the entry of CODECS for an operation that changes the namespace and not a link. `request` encodes the
    operation; unlike in other entries, it takes no ifindex."""
    return Datagram(lambda _index, op: (request(_as(kind, op)),))


def _over_ethtool(kind: type[T], change: Callable[[EthtoolSocket, int, T], None]) -> NamespaceEntry:
    def work(_route: RouteSocket, index: int, op: Op) -> None:
        with EthtoolSocket() as ethtool:
            change(ethtool, index, _as(kind, op))

    return NamespaceEntry(work)


def _kept(row: Datagram) -> Datagram:
    """Return an entry of CODECS that encodes each operation only once and remembers the requests. Used for routes,
    rules and neighbours: the pods of a job have them in common, as identical objects."""
    requests = row.requests

    @lru_cache(_KEPT)
    def known(index: int, op: Same[Op]) -> tuple[Request, ...]:
        return requests(index, op.value)

    return Datagram(lambda index, op: known(index, Same(op)))


def _as(kind: type[T], op: Op) -> T:
    if not isinstance(op, kind):
        raise TypeError(f"{op} in the row of {kind.__name__}")
    return op


CODECS: Final[Mapping[type[Op], Codec]] = {
    SetLink: _one(SetLink, change_request),
    AddAltName: _one(AddAltName, add_alt_name_request),
    DropAltName: _one(DropAltName, drop_alt_name_request),
    SetSettings: _one(SetSettings, settings_request),
    DetachXdp: Datagram(lambda index, _op: detach_xdp_requests(index)),
    AddAddress: _one(AddAddress, add_address_request),
    Inherit: _one(Inherit, inherit_request),
    Restore: _one(Restore, restore_request),
    Remove: _one(Remove, remove_request),
    AddRoute: _kept(_one(AddRoute, add_route_request)),
    AddNeighbour: _kept(_one(AddNeighbour, add_neighbour_request)),
    AddRejectRoute: _anywhere(AddRejectRoute, add_reject_request),
    RemoveRejectRoute: _anywhere(RemoveRejectRoute, remove_reject_request),
    AddRule: _kept(_anywhere(AddRule, add_rule_request)),
    RemoveRule: _anywhere(RemoveRule, remove_rule_request),
    SetSysctl: NamespaceEntry(lambda route, index, op: write_sysctl(route, index, _as(SetSysctl, op))),
    SetFeatures: _over_ethtool(SetFeatures, EthtoolSocket.set_features),
    SetPrivateFlags: _over_ethtool(SetPrivateFlags, EthtoolSocket.set_private_flags),
    SetTuning: _over_ethtool(SetTuning, EthtoolSocket.set_tuning),
    DetachTcx: NamespaceEntry(lambda _route, index, op: detach_tcx(index, _as(DetachTcx, op).keep)),
    JoinVrf: NamespaceEntry(lambda route, index, op: join_vrf(route, index, _as(JoinVrf, op))),
    DropVrf: NamespaceEntry(lambda route, index, op: drop_vrf(route, index, _as(DropVrf, op))),
    RenameRdma: OverRdma(lambda rdma, index, op: rdma.rename(index, _as(RenameRdma, op).name)),
}
