"""The work before an attach: read the state of host and pod, refuse what must be refused, decide the plan.

Nothing on the host changes here. This module asks the kernel; plan.py and inventory.py make the decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, Protocol

from nri_rdma.attach.plan import NetdevMove, Plan, RdmaMove, plan_attach, plan_rdma_moves, with_carried, with_inherited
from nri_rdma.attach.port import Kernel, Namespace, ProcessIdentity, Survey, add_capability
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.decide.inject import USUAL_INTERFACE, AttachedDevice, AttachedRequest
from nri_rdma.decide.inventory import in_use_reasons, ipoib_is_idle, kernel_use_reasons, open_reasons, socket_reasons
from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import refuse_misfits
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import IPOIB, CharDevice, LinkLayer, RdmaNetns
from nri_rdma.model.inherited import Takes
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import MAIN_TABLE
from nri_rdma.model.nldev import RdmaDeviceState, RdmaObject
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Mode
from nri_rdma.model.routing import Routing
from nri_rdma.model.usage import HostUse, Lifelines

_NO_LIFELINES = Lifelines()
_NO_INDEXES: Final[Mapping[str, int]] = MappingProxyType({})
_LOOPBACK = "lo"


class Host(Protocol):
    """The read-only calls of nri_rdma.attach.port.Kernel that this module makes."""

    @property
    def host(self) -> Namespace: ...

    def open_namespace(self, path: str) -> Namespace: ...

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]: ...

    def routing(self, namespace: Namespace) -> Routing: ...

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey: ...

    def rdma_netns(self) -> RdmaNetns: ...

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]: ...

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]: ...

    def can_move_rdma(self, index: int, target: Namespace) -> bool: ...


def needs_namespace(kernel: Host, placed: tuple[Placed, ...]) -> bool:
    """Return whether the attach needs the pod's network namespace: to move netdevs or RDMA devices into it, or to find
    a device's netdev in it."""
    alone = [device for item in placed if item.admitted.mode is Mode.EXCLUSIVE for device in item.devices]
    if any(device.netdevs or device.lacks_netdev for device in alone):
        return True
    return bool(alone) and kernel.rdma_netns() is RdmaNetns.EXCLUSIVE


def refuse_powerless(kernel: Kernel, where: str = "") -> None:
    """Raise PlacementError if this process lacks the capability to move devices. Without it the daemon could not undo a
    begun attach, either."""
    if not kernel.may_change_links():
        raise PlacementError(
            ErrorCode.PRIVILEGE,
            "the daemon lacks CAP_NET_ADMIN: it can move no netdev and no RDMA device into a pod",
            where=where,
            hint=f"{add_capability('NET_ADMIN')}; a pod that asks for mode: shared needs none",
        )


def open_for(kernel: Host, pod: Pod) -> Namespace:
    """Open and return the pod's network namespace. Raises PlacementError for a pod without a network namespace of its
    own."""
    if not pod.netns_path:
        raise PlacementError(
            ErrorCode.NO_NETWORK_NAMESPACE,
            "the runtime names no network namespace for this pod",
            where=str(pod),
            hint="a pod with hostNetwork can only ask for mode: shared",
        )
    namespace = kernel.open_namespace(pod.netns_path)
    if namespace.is_host:
        namespace.close()
        raise PlacementError(
            ErrorCode.HOST_NETWORK,
            "this pod runs on the host's network: a netdev cannot be moved into it",
            where=str(pod),
            hint="ask for mode: shared, or remove hostNetwork from the pod",
        )
    return namespace


def prepare(
    kernel: Host,
    namespace: Namespace | None,
    pod: Pod,
    placed: tuple[Placed, ...],
    rdma_cm: CharDevice | None,
    process: ProcessIdentity | None = None,
    part: str = "",
) -> SandboxRecord:
    """Return the record of a planned attach; `namespace` is None if nothing moves. `part` is "", or the container that
    brought these devices after the sandbox started. The links in the plan lack addresses, routes and neighbours, which
    `completed` adds before anything moves."""
    survey = kernel.survey(_ifindexes(placed))
    _refuse_use(_uses_by_host(placed, survey.use))
    rdma_netns = kernel.rdma_netns()
    refuse_misfits(rdma_netns, (item.admitted for item in placed))
    plan, own = Plan(), USUAL_INTERFACE
    if namespace is not None:
        links = kernel.links(namespace)
        moves = plan_attach(placed, survey.links, links).moves
        plan = Plan(moves=moves, rdma_moves=_rdma_moves(kernel, namespace, placed, rdma_netns))
        own = pod_interface(links, lambda: kernel.routing(namespace)) if moves else own
    return SandboxRecord(
        pod=pod,
        state=Phase.PLANNED,
        namespace=namespace.identity if namespace is not None else None,
        plan=plan,
        attached=attached_requests(placed, plan, own),
        rdma_cm=rdma_cm,
        process=process,
        part=part,
    )


def refuse_held(kernel: Host, record: SandboxRecord) -> None:
    """Raise PlacementError if the host uses a device through sockets, or if processes or the kernel use its RDMA
    objects. The search is slow on a busy host, so the attach calls this, not the planning that a pod's start waits
    for."""
    placed = placed_of(record)
    ifindexes = _ifindexes(placed)
    if any(device.link_layer is LinkLayer.INFINIBAND for item in placed for device in item.devices):
        ifindexes |= {link.ifindex for link in kernel.links(kernel.host) if link.kind == IPOIB}
    use = kernel.survey(ifindexes, sockets=True).use if ifindexes else HostUse()
    _refuse_use((*_uses_by_host(placed, use), *_rdma_uses(kernel, placed, use)))


def completed(
    kernel: Kernel,
    namespace: Namespace | None,
    plan: Plan,
    lifelines: Lifelines = _NO_LIFELINES,
    netdevs: frozenset[int] = frozenset(),
) -> Plan:
    """Return the plan with the present state of its links, and with the host configuration that each netdev keeps in
    the pod. `netdevs` are the interface numbers, in the pod, of netdevs from earlier attaches. Raises PlacementError if
    a link has changed so that it must not be moved."""
    moving = {move.link.ifindex for move in plan.moves}
    if namespace is None or not moving:
        return plan
    carried = kernel.capture(kernel.host, moving, unreturnable=True)
    moves = tuple(with_carried(move, carried) for move in plan.moves)
    if any(map(_needs_routing, moves)):
        pod = replace(kernel.routing(namespace), netdevs=netdevs)
        return replace(plan, moves=with_inherited(moves, kernel.rules(kernel.host), pod, lifelines))
    return replace(plan, moves=tuple(replace(move, takes=Takes()) for move in moves))


def _needs_routing(move: NetdevMove) -> bool:
    """Return whether the routing of host and pod must be read. It is needed if the request has routes, or if the netdev
    keeps host configuration in the pod."""
    if move.config.routes:
        return True
    link = move.link
    has_some = any(not it.kernel_made for it in (*link.addresses, *link.routes, *link.neighbours))
    return move.takes.anything and (has_some or bool(move.addresses))


def _rdma_moves(
    kernel: Host, namespace: Namespace, placed: tuple[Placed, ...], rdma_netns: RdmaNetns
) -> tuple[RdmaMove, ...]:
    """Return the moves of RDMA devices. There are none if network namespaces share the RDMA devices, or if the kernel
    has no RDMA subsystem."""
    if rdma_netns is not RdmaNetns.EXCLUSIVE:
        return ()
    moves = plan_rdma_moves(placed, kernel.rdma_devices(kernel.host))
    for move in moves:
        if not kernel.can_move_rdma(move.index, namespace):
            raise PlacementError(
                ErrorCode.RDMA_NETNS,
                f"the driver of {move.device} cannot move it into the pod, and this kernel shows RDMA devices in one"
                " network namespace only",
                hint="on the node: `rdma system set netns shared` while no pod runs, or ib_core.netns_mode=1 at boot",
            )
    return moves


def _ifindexes(placed: tuple[Placed, ...]) -> set[int]:
    return {netdev.ifindex for item in placed for device in item.devices for netdev in device.netdevs}


def _uses_by_host(placed: tuple[Placed, ...], use: HostUse) -> tuple[str, ...]:
    """Return the reasons why the host needs the netdevs of these devices. Sockets count only for exclusive devices.
    Sockets on the addresses of a shared device may belong to other pods."""
    modes = {
        netdev.ifindex: item.admitted.mode for item in placed for device in item.devices for netdev in device.netdevs
    }
    given = [link for link in use.links if link.ifindex in modes]
    alone = [link for link in given if modes[link.ifindex] is Mode.EXCLUSIVE]
    return (
        *(reason for link in given for reason in in_use_reasons(link, use)),
        *(reason for link in alone for reason in socket_reasons(link, use)),
    )


def _rdma_uses(kernel: Host, placed: tuple[Placed, ...], use: HostUse) -> Iterator[str]:
    """Yield the reasons why these RDMA devices are in use. Processes that have a device open count only if the device
    is exclusive and the pod does more than observe it. In any other case the processes may belong to other pods."""
    numbered = [
        (item.admitted, device, device.kernel_index)
        for item in placed
        for device in item.devices
        if device.kernel_index is not None
    ]
    if not numbered:
        return
    rdma_netns = kernel.rdma_netns()
    for admitted, device, index in numbered:
        objects = kernel.rdma_objects(index)
        yield from kernel_use_reasons(objects, rdma_netns, ipoib_is_idle=ipoib_is_idle(device, use))
        if admitted.mode is Mode.EXCLUSIVE and not admitted.is_watched:
            yield from open_reasons(objects)


def _refuse_use(reasons: tuple[str, ...]) -> None:
    if reasons:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"the host uses this device: {'; '.join(reasons)}",
            hint="free it on the host, or ask for another device",
        )


def placed_of(record: SandboxRecord) -> tuple[Placed, ...]:
    """Return the placement from which a record was made. An RDMA device that moved has the kernel index from the time
    of the attach."""
    return tuple(
        Placed(admitted=request.admitted, devices=tuple(item.device for item in request.devices), reasons=())
        for request in record.attached
    )


def pod_interface(links: Iterable[LinkState], routing: Callable[[], Routing]) -> str:
    """Return the name of the interface by which the pod reaches other pods, or "" if it has none. `links` are the links
    that the pod had before the attach. If several are up, `routing` is called, and the link with the default route is
    taken."""
    own = [link for link in links if link.up and link.name != _LOOPBACK]
    if len(own) < 2:
        return own[0].name if own else ""
    routes = routing().routes

    def preference(link: LinkState) -> tuple[bool, int, int]:
        defaults = [
            it for it in routes.get(link.ifindex, ()) if it.destination.prefixlen == 0 and it.table == MAIN_TABLE
        ]
        return not defaults, min((it.metric for it in defaults), default=0), link.ifindex

    return min(own, key=preference).name


def attached_requests(
    placed: tuple[Placed, ...], plan: Plan, pod_interface: str | None = USUAL_INTERFACE
) -> tuple[AttachedRequest, ...]:
    """Return the pod's requests, each with its devices as they will be after the attach. The devices have the netdev
    names that they get in the pod."""
    in_pod = {move.link.ifindex: move.pod_name for move in plan.moves}
    indexes = {move.device: move.index for move in plan.rdma_moves}
    return expected_requests(placed, in_pod, pod_interface, indexes)


def expected_requests(
    placed: tuple[Placed, ...],
    in_pod: Mapping[int, str],
    pod_interface: str | None,
    indexes: Mapping[str, int] = _NO_INDEXES,
) -> tuple[AttachedRequest, ...]:
    """Return the pod's requests, each with its devices as they will be after the attach. `in_pod` maps a netdev's
    ifindex on the host to its name in the pod, `indexes` the names of RDMA devices that move to their kernel indexes.
    `pod_interface` is the interface by which the pod reaches other pods; None: its network does not exist yet."""
    return tuple(
        AttachedRequest(
            admitted=item.admitted,
            pod_interface=pod_interface,
            devices=tuple(
                AttachedDevice(
                    device=replace(device, kernel_index=indexes[device.name]) if device.name in indexes else device,
                    netdev_names=tuple(in_pod.get(netdev.ifindex, netdev.name) for netdev in device.netdevs)
                    if item.admitted.mode is Mode.EXCLUSIVE
                    else (),
                    limits=limits,
                )
                for device, limits in zip_longest(item.devices, item.limits)
            ),
        )
        for item in placed
    )
