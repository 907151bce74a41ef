"""Devices that other programs gave to the containers of a pod (CDI devices of a DRA driver, device nodes), and what
follows from them.

Pure. A CDI spec can contain a request to nri-rdma, in an annotation (nri_rdma.cdi.meaning). For a spec without one, the
administrator's setting `adopt` decides whether nri-rdma completes what the other program gave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nri_rdma.cdi.grants import CdiGrant, Origin
from nri_rdma.cdi.meaning import label_of
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.placement import Holding, Placed, Taken
from nri_rdma.decide.policy import Asker, Offer, Policy, admit_granted, is_proven, refuse_two_values
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from nri_rdma.model.adoption import Adopt, Adoption
from nri_rdma.model.device import CharKind, DeviceId, DeviceNumbers, Node, RdmaDevice
from nri_rdma.model.request import DeviceRequest, Mode, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request that the spec of a CDI device makes to nri-rdma, and the RDMA devices that the CDI device names."""

    request: DeviceRequest
    devices: tuple[RdmaDevice, ...]


def requests_of(grants: Iterable[CdiGrant], adoption: Adoption) -> tuple[Wanted, ...]:
    """Return the requests of CDI devices that containers have (`grants`). A CDI device of several containers makes one
    request for all of them.

    Raise the error of a spec whose request cannot be read or whose netdev is away, because a container must not start
    without its devices. That a netdev is away does not matter if only the container's device nodes show the CDI device:
    the nodes may come from another program.
    """
    by_name: dict[str, list[CdiGrant]] = {}
    for grant in grants:
        by_name.setdefault(grant.name, []).append(grant)
    return tuple(item for same in by_name.values() for item in _wanted_for(same, adoption))


def _wanted_for(same: list[CdiGrant], adoption: Adoption) -> Iterator[Wanted]:
    first = same[0]
    if first.problem is not None:
        raise first.problem
    meaning = first.meaning
    is_told = any(grant.origin is not Origin.NODES for grant in same)
    if meaning is not None and meaning.away is not None and is_told:
        raise meaning.away.with_traceback(None)  # otherwise its traceback would grow with every raise
    if meaning is None or not meaning.devices:
        return
    names = frozenset(grant.container for grant in same)
    scope = Scope() if any(grant.for_all for grant in same) else Scope(only=names)
    if meaning.asked:
        for part in meaning.asked:
            request = replace(part.request, scope=scope, cdi_device=first.name)
            yield Wanted(request=request, devices=part.devices)
        return
    vendor = adoption.of(first.vendor)
    if vendor.adopt is not Adopt.OBSERVE:
        request = DeviceRequest(
            name=label_of(first.name),
            where=f"CDI device {first.name}",
            mode=Mode.SHARED,
            count=len(meaning.devices),
            scope=scope,
            char_kinds=frozenset({CharKind.UVERBS}),
            memlock=vendor.memlock,
            limits=vendor.limits,
            cdi_device=first.name,
        )
        yield Wanted(request=request, devices=meaning.devices)


def lacks(grants: Iterable[CdiGrant], attached: Iterable[DeviceRequest], adoption: Adoption) -> bool:
    """Return whether a container has a CDI device whose RDMA devices still have to be attached for it. `grants` are the
    CDI devices of containers, and `attached` are the requests whose devices are attached already. A spec with an
    unreadable request counts as not attached."""
    requests = tuple(attached)
    bare = [
        grant
        for grant in grants
        if not any(it.cdi_device == grant.name and it.scope.covers(grant.container) for it in requests)
    ]
    try:
        return bool(requests_of(bare, adoption))
    except NriRdmaError:
        return True


def place_granted(node: Node, taken: Taken, items: tuple[Wanted, ...], asker: Asker, owner: str) -> tuple[Placed, ...]:
    """Return the requests of CDI devices with their RDMA devices, which another program has chosen. Raise
    PlacementError or RequestError if the kernel, the pod or the host's use of a device does not allow a request, or if
    another holder has the device in a mode that forbids it. A request with admin access conflicts with no holder."""
    placed: list[Placed] = []
    for item in items:
        placed.append(_granted_one(node, _with_holdings(taken, placed, owner), item, asker))
    return tuple(placed)


def _granted_one(node: Node, taken: Taken, item: Wanted, asker: Asker) -> Placed:
    mode = item.request.mode or Mode.SHARED
    admitted = admit_granted(node, replace(item.request, mode=mode), asker)
    holders = {device.id: taken.get(device.id, frozenset()) for device in item.devices}
    for device in item.devices if not item.request.admin_access else ():
        _refuse_taken(device, mode, holders[device.id], item.request)
        uses = (*device.in_use, *device.ties)
        if mode is Mode.EXCLUSIVE and uses:
            raise PlacementError(
                ErrorCode.DEVICE_IN_USE,
                f"{device.name} is used by the host ({'; '.join(uses)})",
                where=item.request.where,
                hint="free it on the host, or have its driver offer another device",
            )
    reasons = tuple(f"{device.name}: CDI device {item.request.cdi_device}" for device in item.devices)
    is_watched = any(holding.looks_on for holdings in holders.values() for holding in holdings)
    return Placed(admitted=replace(admitted, is_watched=is_watched), devices=item.devices, reasons=reasons)


def with_pools(policy: Policy, offer: Offer, given: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """Return the placed requests with the settings and variables that the pools of their devices add; settings of a
    request itself stay. Raise PlacementError if two pools of one request give a variable different values."""
    pools = policy.pools.values() if given else ()
    if not any(it.env or it.use or it.prove or it.userspace or it.roce_version for it in pools):
        return given
    return tuple(_with_pools(policy, offer, item) for item in given)


def _with_pools(policy: Policy, offer: Offer, item: Placed) -> Placed:
    homes = dict.fromkeys(offer.home_of(device) for device in item.devices)
    pools = [policy.pools[name] for name in homes if name]
    uses = {pool.use for pool in pools}
    request = item.admitted.request
    if request.use is None and len(uses) == 1:
        request = replace(request, use=uses.pop())
    prove = any(is_proven(pool, request) for pool in pools) or None
    if pools and prove is not request.prove:
        request = replace(request, prove=prove)
    checks = {pool.userspace for pool in pools}
    if request.userspace is None and len(checks) == 1:
        request = replace(request, userspace=checks.pop())
    versions = {pool.roce_version for pool in pools}
    if request.roce_version is None and len(versions) == 1:
        request = replace(request, roce_version=versions.pop())
    refuse_two_values(replace(item.admitted, request=request, env=pool.env) for pool in pools)
    env = {name: value for pool in pools for name, value in pool.env}
    return replace(item, admitted=replace(item.admitted, request=request, env=tuple(env.items())))


def _refuse_taken(device: RdmaDevice, mode: Mode, holders: Collection[Holding], request: DeviceRequest) -> None:
    for holding in sorted(holders, key=lambda it: (it.owner, it.mode)):
        if holding.bars(mode):
            how, hint = (
                "",
                "give a device in one way only: by an annotation's pool, or by the driver of this CDI device",
            )
            if request.cdi_device.startswith(f"{DRIVER}/"):  # a device of our own driver is never in a second pool
                hint = "nothing to do: it is free for others when that pod has ended"
                if holding.cdi_device == request.cdi_device:
                    how = ", by the same claim"
                    hint = "ask for mode: shared, or give each pod a claim of its own (resourceClaimTemplateName)"
            raise PlacementError(
                ErrorCode.DEVICE_CONFLICT,
                f"{device.name} is held by {holding.owner} ({holding.mode}){how}",
                where=request.where,
                hint=hint,
            )


def with_grants(taken: Taken, placed: tuple[Placed, ...], owner: str) -> Taken:
    """Return the holdings `taken` of other pods, with the devices of `placed` added as held exclusively by `owner`.
    These devices came to this pod by other programs (CDI). The requests of the pod's annotations then cannot get them a
    second time."""
    return _with_holdings(taken, placed, owner, Mode.EXCLUSIVE)


def _with_holdings(taken: Taken, placed: Iterable[Placed], owner: str, mode: Mode | None = None) -> Taken:
    """Return the holdings with the devices of `placed` added, each held by `owner`. `mode` is the mode of the added
    holdings; None: the mode of each request."""
    more = dict(taken)
    for item in placed:
        words = f"{owner} (CDI device {item.admitted.request.cdi_device})"
        for device in item.devices:
            looks_on = item.admitted.request.admin_access
            holding = Holding(owner=words, mode=mode or item.admitted.mode, looks_on=looks_on)
            more[device.id] = more.get(device.id, frozenset()) | {holding}
    return more


def refuse_unallocated(
    node: Node,
    present: Mapping[str, DeviceNumbers],
    covered: Collection[DeviceId],
    explained: Mapping[DeviceId, frozenset[str]],
    adoption: Adoption,
    where: str,
) -> None:
    """Raise PlacementError if a container has device nodes of an RDMA device that no known program allocated to it, and
    the setting `adopt` is `enforce`. `present` has the container's device nodes by path; devices in `covered` are
    allocated. `explained` has, by device, the vendors whose CDI devices contain its nodes."""
    for device in shown_devices(node, present):
        if device.id in covered:
            continue
        vendors = sorted(explained.get(device.id, {""}))
        vendor = next((it for it in vendors if adoption.of(it).adopt is Adopt.ENFORCE), None)
        if vendor is not None:
            by = f"adopt.vendors.{vendor}" if vendor in adoption.vendors else "adopt"
            raise PlacementError(
                ErrorCode.NOT_ALLOCATED,
                f"this container has device nodes of {device.name} that nobody is known to have allocated to it",
                where=where,
                hint=f"ask for the device by a claim or an annotation, or the administrator changes {by}",
            )


def shown_devices(node: Node, present: Mapping[str, DeviceNumbers]) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices whose uverbs nodes a container has, at any path. `present` has the container's device
    nodes by path."""
    numbers = set(present.values())
    return tuple(
        device
        for device in node.devices
        if any(char.kind is CharKind.UVERBS and (char.major, char.minor) in numbers for char in device.char_devices)
    )
