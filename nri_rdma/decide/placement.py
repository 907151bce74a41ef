"""Chooses the devices of a pod.

``place`` is a pure function: equal arguments give equal devices, each with a readable reason for its choice.

Rules: two requests of a pod do not get one device, unless both are for shares (ids that the kubelet allocates). A
device comes from the requested pool of devices, and the host does not use it. For mode exclusive no other pod has the
device; for mode shared no other pod has it exclusively. A pod gets all devices that it requests, or an error that names
the devices that are not free, with the reasons.

Each request gets the best of the free devices (nri_rdma.decide.ranking). Requests choose one after the other. A request
that only few devices can fulfil chooses early; no search looks for the best choice over several requests together.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

from nri_rdma.decide.layout import READINGS_KEPT, layout_of
from nri_rdma.decide.policy import Admitted, Offer
from nri_rdma.decide.ranking import Pick, Surroundings, anywhere, near_gpus
from nri_rdma.decide.share_requests import down_words
from nri_rdma.decide.topology import FARTHEST_ALIGNED, Distance, roots
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharKind, DeviceId, Gpu, Node, RdmaDevice, RdmaNetns
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, Align, AlignTo, DeviceRequest, Match, Mode, RdmaLimits, Use
from nri_rdma.model.same import Same
from nri_rdma.model.selector import Selector

_MAX_NAMED = 16
"""The most devices that one refusal names."""
_MAX_REASONS = 600
"""The most characters of reasons in one refusal: an event of Kubernetes holds 1,024, including the kubelet's own
words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The fact that a pod has a device.

    `owner` is the pod as namespace/name, for error texts; `gpus` are the pod's known GPUs. `shares` are the pool's
    shares (ids that the kubelet allocates) for which the pod got the device. `cdi_device` is the CDI device that gave
    it to the pod, or "".

    `is_sole`: no other pod may have the device, even in mode shared. `looks_on`: the pod has admin access, that is, it
    gets the device nodes even while other pods have the device.
    """

    owner: str
    mode: Mode
    gpus: frozenset[PciAddress] = frozenset()
    shares: frozenset[str] = frozenset()
    is_sole: bool = False
    looks_on: bool = False
    cdi_device: str = ""

    def bars(self, mode: Mode, *, is_sole: bool = False) -> bool:
        """Return whether another pod cannot get the device in `mode` because of this holding. `is_sole`: the other pod
        must be the only pod with the device. A holding with admin access (`looks_on`) never keeps others from the
        device."""
        if self.looks_on:
            return False
        return is_sole or self.is_sole or Mode.EXCLUSIVE in {mode, self.mode}


Taken: TypeAlias = Mapping[DeviceId, frozenset[Holding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The devices chosen for one request, each with one sentence on why it was chosen. `serves` has the GPU for which
    each device was chosen; it is empty if no GPU decided. `limits` has the limits of each device if they differ from
    the request's limits (nri_rdma.decide.share_limits); otherwise it is empty."""

    admitted: Admitted
    devices: tuple[RdmaDevice, ...]
    reasons: tuple[str, ...]
    serves: tuple[PciAddress, ...] = ()
    limits: tuple[RdmaLimits | None, ...] = ()

    def holdings(self, owner: str) -> Iterator[tuple[DeviceId, Holding]]:
        """Yield each device of this request with a Holding: the fact that the pod `owner` (namespace/name) has the
        device."""
        return holdings_of(owner, self.admitted, (device.id for device in self.devices))


def holdings_of(owner: str, admitted: Admitted, devices: Iterable[DeviceId]) -> Iterator[tuple[DeviceId, Holding]]:
    """Yield each of the devices with a Holding: the fact that the pod `owner` (namespace/name) has the device for this
    request."""
    request, ids = admitted.request, tuple(devices)
    gpus = frozenset(request.gpus)
    for index, device_id in enumerate(ids):
        shares = request.shares_of(index, len(ids))
        is_sole = request.match.id is not None
        yield (
            device_id,
            Holding(
                owner=owner,
                mode=admitted.mode,
                gpus=gpus,
                shares=shares,
                is_sole=is_sole,
                looks_on=request.admin_access,
                cdi_device=request.cdi_device,
            ),
        )


def place(node: Node, offer: Offer, taken: Taken, request: tuple[Admitted, ...]) -> tuple[Placed, ...]:
    """Choose devices for each request of one pod, and return them in the order of the requests. Raise PlacementError if
    a request cannot be fulfilled.

    `offer` has the devices of each pool. `taken` has the devices that other pods have; it must not have the devices
    that this pod got in an earlier attempt, because the pod may get them again.
    """
    used: dict[DeviceId, str] = {}
    served: Counter[PciAddress] = Counter()
    busy = {pci for holders in taken.values() for holding in holders for pci in holding.gpus}
    busy.update(pci for item in request for pci in item.request.gpus)
    idle = tuple(gpu for gpu in node.gpus if gpu.pci not in busy)
    shares, pods = _shares_given(taken, request), _pods_beside(taken, request)
    placed: dict[int, Placed] = {}
    for number in _pickiest_first(offer, request):
        search = _Search.of(node, offer, taken, used, served, idle, shares, pods, request[number])
        placed[number] = search.run()
        used |= {device.id: search.request.name for device in placed[number].devices}
        shares.update({device_id: len(holding.shares) for device_id, holding in placed[number].holdings("")})
        served.update(placed[number].serves)
    return tuple(placed[number] for number in range(len(request)))


def prepare(node: Node) -> None:
    """Compute the facts about a node that every placement needs, and cache them so that no starting pod waits for
    them."""
    layout_of(node)
    for mode in Mode:
        _clear(Same(node), mode, DEFAULT_CHAR_KINDS)


def _shares_given(taken: Taken, request: tuple[Admitted, ...]) -> Counter[DeviceId]:
    """Return for each device how many shares are allocated on it; empty if this pod requests no shares. A share is an
    id that the kubelet allocates. A share that the kubelet now allocates to this pod does not count, because its former
    pod has ended."""
    own = frozenset(share for item in request for share in item.request.shares)
    given: Counter[DeviceId] = Counter()
    for device_id, holders in taken.items() if own else ():
        given[device_id] = len({share for holding in holders for share in holding.shares} - own)
    return given


def _pods_beside(taken: Taken, request: tuple[Admitted, ...]) -> Counter[DeviceId]:
    """Return for each device how many other pods have it; empty if no request of this pod is for mode shared. Pods with
    admin access do not count. If this pod requests shares (ids that the kubelet allocates), other pods with shares do
    not count either: `_shares_given` counts their shares."""
    counts_shares = any(it.request.shares for it in request)
    pods: Counter[DeviceId] = Counter()
    for device_id, holders in taken.items() if any(it.mode is Mode.SHARED for it in request) else ():
        pods[device_id] = len({it.owner for it in holders if not (it.looks_on or (counts_shares and it.shares))})
    return pods


def _pickiest_first(offer: Offer, request: tuple[Admitted, ...]) -> list[int]:
    """Return the indexes of the requests in the order in which they choose devices. Requests that name a device are
    first, then strict ones, then those that few devices match. Otherwise a request for any device could take one that
    another request names, or the only one that is near enough for a strict request."""
    if len(request) == 1:
        return [0]

    def key(number: int) -> tuple[bool, bool, bool, int, bool, int]:
        item = request[number].request
        is_strict = item.align is not None and item.align.strict
        choice = len(_matching(item.match, offer.by_pool[item.pool]))
        return not _names_device(item.match), item.count is None, not is_strict, choice, not item.gpus, number

    return sorted(range(len(request)), key=key)


# Matching

_SPEED, _EXCLUDE, _PKEY = "minSpeedGbps", "exclude", "pkey"


@dataclass(frozen=True, slots=True)
class _Condition:
    """A key of `match` with three functions: the value that a request wants, whether a device fulfils it, and the value
    that the device has."""

    key: str
    wanted: Callable[[Match], object]
    holds: Callable[[Match, RdmaDevice], bool]
    has: Callable[[RdmaDevice], object]


def _physical_names(device: RdmaDevice) -> str:
    return ", ".join(device.virtual.pf_netdevs if device.virtual is not None else ())


def _pkeys(device: RdmaDevice) -> str:
    return ", ".join(sorted({f"{key:#06x}" for port in device.ports for key in port.pkeys}))


def _is(has: object, wanted: object) -> bool:
    return has in wanted if isinstance(wanted, tuple) else has == wanted


def _selected(word: str, field: str, has: Callable[[RdmaDevice], object]) -> _Condition:
    """Return the condition for a key that pools have, too: a Selector, which chooses the devices of pools, checks the
    device. `word` is the key, and `field` is its attribute in Match and in Selector. `has` returns the device's own
    value for error texts."""
    return _Condition(
        word,
        lambda m: getattr(m, field) or None,
        lambda m, it: Selector(**{field: getattr(m, field)}).selects(it),
        has,
    )


_CONDITIONS: tuple[_Condition, ...] = (
    _Condition("device", lambda m: m.device, lambda m, it: _is(it.name, m.device), lambda it: it.name),
    _Condition(
        "netdev",
        lambda m: m.netdev,
        lambda m, it: any(_is(netdev.name, m.netdev) for netdev in it.netdevs),
        lambda it: ", ".join(netdev.name for netdev in it.netdevs),
    ),
    _Condition("pci", lambda m: m.pci, lambda m, it: _is(it.pci, m.pci), lambda it: it.pci),
    _Condition("vendor", lambda m: m.vendor, lambda m, it: _is(it.vendor, m.vendor), lambda it: it.vendor),
    _selected("deviceID", "device_id", lambda it: it.device_id),
    _Condition("driver", lambda m: m.driver, lambda m, it: _is(it.driver, m.driver), lambda it: it.driver),
    _Condition(
        "pfName",
        lambda m: m.pf_name or None,
        lambda m, it: it.virtual is not None and Selector(pf_name=m.pf_name).selects(it),
        _physical_names,
    ),
    _Condition(
        "linkLayer", lambda m: m.link_layer, lambda m, it: _is(it.link_layer, m.link_layer), lambda it: it.link_layer
    ),
    _selected("protocol", "protocol", lambda it: it.protocol),
    _selected(_PKEY, "pkey", _pkeys),
    _Condition(
        "numaNode", lambda m: m.numa_node, lambda m, it: _is(it.numa_node, m.numa_node), lambda it: it.numa_node
    ),
    _Condition(
        "id",
        lambda m: m.id,
        lambda m, it: it.id == m.id,
        lambda it: it.id,
    ),
    _Condition(
        _SPEED,
        lambda m: m.min_speed_gbps,
        lambda m, it: it.speed_gbps >= (m.min_speed_gbps or 0),
        lambda it: it.speed_gbps,
    ),
    _Condition(
        _EXCLUDE,
        lambda m: " or ".join(map(str, m.exclude)) or None,
        lambda m, it: not any(selector.may_select(it) for selector in m.exclude),
        lambda it: it.name,
    ),
)


def _asked(match: Match) -> tuple[_Condition, ...]:
    return tuple(condition for condition in _CONDITIONS if condition.wanted(match) is not None)


def _matching(match: Match, devices: Iterable[RdmaDevice]) -> tuple[RdmaDevice, ...]:
    conditions = _asked(match)
    return tuple(device for device in devices if all(it.holds(match, device) for it in conditions))


def mismatch(match: Match, device: RdmaDevice) -> str:
    """Return a text that names each condition of `match` that the device does not fulfil; "" if it fulfils all."""
    failed = (it for it in _asked(match) if not it.holds(match, device))
    return "; ".join(_failed(it.key, it.wanted(match), it.has(device)) for it in failed)


def _failed(key: str, wanted: object, has: object) -> str:
    if key == _SPEED:
        return f"speed is {has} Gbit/s, and match asks for at least {wanted}"
    if key == _EXCLUDE:
        return f"match excludes {wanted}"
    return f"{f'it has no {key}' if has in {None, ''} else f'{key} is {has}'}, and match asks for {_any(key, wanted)}"


def _any(key: str, wanted: object) -> str:
    values = wanted if isinstance(wanted, tuple) else (wanted,)
    return " or ".join(f"{it:#06x}" if key == _PKEY else str(it) for it in values)


def _names_device(match: Match) -> bool:
    """Return whether `match` names exactly one device. A list of names does not, because any device of the list will
    do."""
    names = (match.id, match.device, match.netdev, match.pci)
    return any(name is not None and not isinstance(name, tuple) for name in names)


def _describe(match: Match) -> str:
    words = [
        f"{'anything but' if it.key == _EXCLUDE else it.key} {_any(it.key, it.wanted(match))}" for it in _asked(match)
    ]
    return " and ".join(words) or "anything"


# One request


def why_not_free(device: RdmaDevice, admitted: Admitted, node: Node, holders: frozenset[Holding]) -> str:
    """Return the reason why the request would not get this device; "" if it would. The text is the end of a sentence
    that begins with the device's name."""
    obstacle = _obstacle(device, admitted, node, holders, None)
    return obstacle.what if obstacle is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacle:
    """A reason why a device cannot be given. `what` is the end of a sentence that begins with the device's name.
    `remedy` is a step that frees devices, for the error of a request that finds too few devices; "" if only a different
    request helps."""

    code: ErrorCode
    what: str
    hint: str
    remedy: str = ""


_WAIT = "wait until a pod that holds some has ended"
_FREE = "free what the host uses"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for the devices of one request. `free` are the matching devices that can be given; `up` are those of
    `free` that can carry data in the pod. `obstacles` has, for each matching device that cannot be given, the
    reason."""

    node: Node
    offer: Offer
    served: Mapping[PciAddress, int]
    idle: tuple[Gpu, ...]
    shares: Mapping[DeviceId, int]
    pods: Mapping[DeviceId, int]
    admitted: Admitted
    gpus: tuple[Gpu, ...]
    matching: tuple[RdmaDevice, ...]
    free: tuple[RdmaDevice, ...]
    up: tuple[RdmaDevice, ...]
    obstacles: Mapping[DeviceId, _Obstacle]

    @classmethod
    def of(
        cls,
        node: Node,
        offer: Offer,
        taken: Taken,
        used: Mapping[DeviceId, str],
        served: Mapping[PciAddress, int],
        idle: tuple[Gpu, ...],
        shares: Mapping[DeviceId, int],
        pods: Mapping[DeviceId, int],
        admitted: Admitted,
    ) -> _Search:
        matching = _matching(admitted.request.match, offer.by_pool[admitted.request.pool])
        most = offer.shares_per_device.get(admitted.request.pool, 0)
        clear = _clear(Same(node), admitted.mode, admitted.request.char_kinds)
        # A device whose shares are given has a holder, so that it is in `taken` or in `used`.
        suspect = [it for it in matching if it.id not in clear or it.id in taken or it.id in used]
        obstacles = {
            device.id: obstacle
            for device in suspect
            if (obstacle := _obstacle(device, admitted, node, taken.get(device.id, frozenset()), used.get(device.id)))
            or (obstacle := _all_shares_given(shares.get(device.id, 0), most, admitted.request, taken.get(device.id)))
        }
        down = layout_of(node).down[admitted.mode]
        if down:
            dead = [it for it in matching if it.id in down]
            obstacles |= _down(dead, admitted, matching, obstacles, offer)
        free = tuple(device for device in matching if device.id not in obstacles)
        return cls(
            node=node,
            offer=offer,
            served=served,
            idle=idle,
            shares=shares,
            pods=pods,
            admitted=admitted,
            gpus=_named_gpus(node, admitted.request),
            matching=matching,
            free=free,
            up=tuple(device for device in free if device.id not in down) if down else free,
            obstacles=obstacles,
        )

    @property
    def request(self) -> DeviceRequest:
        return self.admitted.request

    @property
    def count(self) -> int:
        """The number of devices to choose. ``count: all`` means all matching devices; ``count: free`` means all free
        devices that can carry data, at least one. A request for shares (ids that the kubelet allocates) gets at most as
        many devices as are free: one device can serve several shares."""
        if self.request.if_free:
            return max(1, len(self.up))
        if self.request.shares:
            return max(1, min(len(self.free), self.request.count or len(self.free)))
        return len(self.matching) if self.request.count is None else self.request.count

    @property
    def usable(self) -> tuple[RdmaDevice, ...]:
        """The free devices that can carry data; all free devices if fewer than `count` can carry data."""
        return self.up if len(self.up) >= self.count else self.free

    @property
    def load(self) -> Mapping[DeviceId, int]:
        """The number of pods and shares (ids that the kubelet allocates) that already have each free device; empty for
        an exclusive request."""
        if self.admitted.mode is Mode.EXCLUSIVE:
            return {}
        return {it.id: self.shares.get(it.id, 0) + self.pods.get(it.id, 0) for it in self.free}

    @property
    def around(self) -> Surroundings:
        """The facts about the node by which the free devices are ranked: positions, idle GPUs, rails, load, and ports
        that are down."""
        layout = layout_of(self.node)
        return Surroundings(
            layout=layout,
            idle=self.idle,
            rails=layout.rails if self.gpus else {},
            load=self.load,
            down=layout.down[self.admitted.mode],
        )

    def distance(self, device: RdmaDevice, gpu: Gpu) -> Distance:
        """Return how far data travels between a device and a GPU: from PIX (below one switch) to SYS (on different NUMA
        nodes)."""
        return layout_of(self.node).distance(gpu.pci, device.id)

    def nearest(self, gpu: Gpu) -> Distance:
        """Return the distance from a GPU to the nearest device in `usable`."""
        return min(self.distance(device, gpu) for device in self.usable)

    def run(self) -> Placed:
        if not self.matching:
            raise _nothing_matches(self)
        is_all = self.request.count is None and not self.request.if_free
        if self.count > len(self.free) or (is_all and _names_in_vain(self)):
            raise _too_few(self)
        choices = _CHOICES[_align_to(self.request)](self)
        return Placed(
            admitted=self.admitted,
            devices=tuple(it.device for it in choices),
            reasons=tuple(
                f"{it.device.name}: {'; '.join(filter(None, (it.why, down_words(it.device, self.admitted.mode))))}"
                for it in choices
            ),
            serves=tuple(it.gpu.pci for it in choices if it.gpu is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    device: RdmaDevice
    why: str
    gpu: Gpu | None = None


def _named_gpus(node: Node, request: DeviceRequest) -> tuple[Gpu, ...]:
    by_address = {gpu.pci: gpu for gpu in node.gpus}
    for address in request.gpus:
        if address not in by_address:
            raise PlacementError(
                ErrorCode.DEVICE_UNKNOWN,
                f"this node has no GPU {address}",
                where=f"{request.where}.gpus",
                hint=f"its GPUs are {_listed(str(gpu.pci) for gpu in node.gpus)}",
            )
    return tuple(by_address[address] for address in request.gpus)


def _obstacle(
    device: RdmaDevice, admitted: Admitted, node: Node, holders: frozenset[Holding], used_by: str | None
) -> _Obstacle | None:
    """Return the first reason why the request cannot get the device; None if it can. `used_by` is another request of
    this pod that has the device already. Pods that have the device are checked before use by the host, because a pod's
    use of its device may look like the host's."""
    is_sole = admitted.request.match.id is not None
    if used_by is not None and (is_sole or not admitted.request.shares):
        hint = "name it in one request only"
        return _Obstacle(code=ErrorCode.DEVICE_CONFLICT, what=f"given to request {used_by} of this pod", hint=hint)
    barring = [h.owner for h in holders if h.bars(admitted.mode, is_sole=is_sole)]
    if barring:
        hint = "wait until that pod has ended, or ask for another device"
        what = f"held by pod {_listed(sorted(barring))}"
        return _Obstacle(code=ErrorCode.DEVICE_IN_USE, what=what, hint=hint, remedy=_WAIT)
    return _own_obstacle(device, admitted.request, admitted.mode, node, device.in_use if holders else device.uses)


def _own_obstacle(
    device: RdmaDevice, request: DeviceRequest, mode: Mode, node: Node, uses: Collection[str]
) -> _Obstacle | None:
    """Return the first reason why the device cannot be given, apart from pods that have it; None if there is no such
    reason. `uses` are sentences about the host's own use of the device."""
    if uses:
        hint = "free it on the node, or ask for another device"
        what = f"in use by the host: {'; '.join(uses)}"
        return _Obstacle(code=ErrorCode.DEVICE_IN_USE, what=what, hint=hint, remedy=_FREE)
    if mode is Mode.EXCLUSIVE and (obstacle := _obstacle_to_move(device, request, node)):
        return obstacle
    if device.is_limited and request.use is not Use.STORAGE:  # storage servers are full members: these are reached
        hint = "have the subnet manager make the port a full member, or write use: storage if only servers are reached"
        what = f"a limited member of its partitions (pkey {_pkeys(device)}), so that two such ports exchange no data"
        return _Obstacle(code=ErrorCode.PKEY_LIMITED, what=what, hint=hint, remedy="make the ports full members")
    missing = request.char_kinds - {CharKind.RDMA_CM, *(char.kind for char in device.char_devices)}
    if missing:
        first = min(missing)
        hint = f"load the kernel module ib_{first if first != CharKind.ISSM else CharKind.UMAD} on the node"
        what = f"without a {first} device node"
        return _Obstacle(code=ErrorCode.DEVICE_UNKNOWN, what=what, hint=hint, remedy=hint)
    return None


@lru_cache(maxsize=len(Mode) * READINGS_KEPT)
def _clear(reading: Same[Node], mode: Mode, char_kinds: frozenset[CharKind]) -> frozenset[DeviceId]:
    """Return the devices that a request with this mode and these kinds of character devices can get if no pod has
    them."""
    node, request = reading.value, DeviceRequest(name="", where="", char_kinds=char_kinds)
    return frozenset(it.id for it in node.devices if _own_obstacle(it, request, mode, node, it.uses) is None)


def _down(
    down: Iterable[RdmaDevice],
    admitted: Admitted,
    matching: Collection[RdmaDevice],
    obstacles: Mapping[DeviceId, _Obstacle],
    offer: Offer,
) -> Mapping[DeviceId, _Obstacle]:
    """Return an obstacle for each device in `down` (devices without an active port) if the request must not get such a
    device.

    A strict request must not get one, nor a request to a pool that refuses them. A request for shares (ids that the
    kubelet allocates) must not get one while another device can be given.
    """
    request = admitted.request
    pool_refuses = request.pool in offer.refusing_down
    instead = ", or leave strict out" if _is_strict(request) and not pool_refuses else ""
    without_port = {it.id: _without_port(it, admitted.mode, instead) for it in down if it.id not in obstacles}
    if _is_strict(request) or pool_refuses:
        return without_port
    is_share = bool(request.shares) and request.count is not None
    return without_port if is_share and len(without_port) < len(matching) - len(obstacles) else {}


def _without_port(device: RdmaDevice, mode: Mode, instead: str) -> _Obstacle:
    netdev = next((it.name for it in device.netdevs if not it.up), "")
    set_up = f" (ip link set {netdev} up)" if netdev else ""
    return _Obstacle(
        code=ErrorCode.PORT_DOWN,
        what=f"without an active port: {down_words(device, mode)}",
        hint=f"bring the port up on the node{set_up}, or ask for another device{instead}",
        remedy="bring up the ports that are down",
    )


def _all_shares_given(
    given: int, most: int, request: DeviceRequest, holders: Collection[Holding] | None
) -> _Obstacle | None:
    """Return the obstacle that a device has no share left; None if it has some, and for shares that this pod already
    has on it, because another of its containers had them before."""
    if not most or given < most or {*request.shares} <= {share for it in holders or () for share in it.shares}:
        return None
    hint = "wait until a pod that has some has ended"
    what = f"with all of its {most} shares given"
    return _Obstacle(code=ErrorCode.DEVICE_IN_USE, what=what, hint=hint, remedy=_WAIT)


def _obstacle_to_move(device: RdmaDevice, request: DeviceRequest, node: Node) -> _Obstacle | None:
    """Return the reason why the device's netdev cannot move from the host into a pod, or None."""
    if device.lacks_netdev and not _may_be_in_pod(request, node):
        hint = "name the device if its netdev is in the pod already; else look for it in other network namespaces"
        what = "without its netdev, which is not on the host"
        remedy = "bring back the netdevs that are not on the host"
        return _Obstacle(code=ErrorCode.DEVICE_IN_USE, what=what, hint=hint, remedy=remedy)
    if device.is_soft and device.netdevs and device.kernel_index is not None:
        hint = "ask for mode: shared, or have it made inside the pod before nri-rdma hears of the pod"
        what = "a soft device, which the kernel removes when its netdev leaves the host"
        return _Obstacle(code=ErrorCode.SOFT_DEVICE, what=what, hint=hint, remedy="ask for mode: shared")
    if device.ties:
        hint = "remove that on the host, or ask for mode: shared, or for another device"
        what = f"in use by the host: {'; '.join(device.ties)}"
        return _Obstacle(code=ErrorCode.DEVICE_IN_USE, what=what, hint=hint, remedy=_FREE)
    return None


def _may_be_in_pod(request: DeviceRequest, node: Node) -> bool:
    """Return whether a CNI plugin may have moved a netdev that is missing on the host into the pod already. This is
    assumed if the request names the device; the later attach to the pod checks it."""
    return _names_device(request.match) and node.rdma_netns is not RdmaNetns.NONE


def _align_to(request: DeviceRequest) -> AlignTo:
    if request.align is not None:
        return request.align.to
    return AlignTo.GPU if request.gpus or request.gpus_problem else AlignTo.NONE


def _is_strict(request: DeviceRequest) -> bool:
    return request.align is not None and request.align.strict


def _is_numa_strict(request: DeviceRequest) -> bool:
    return _is_strict(request) and _align_to(request) is AlignTo.NUMA


# Choosing among the free


def _choose_any(search: _Search) -> list[_Choice]:
    return _choose_unaligned(search, "")


def _choose_unaligned(search: _Search, why: str) -> list[_Choice]:
    around = search.around
    chosen = search.free if search.count == len(search.free) else anywhere(search.free, search.count, around)
    words = f"; {why}" if why else ""
    if _names_device(search.request.match):
        named = _named(search)
        return [_Choice(device=it, why=f"{named}{words}") for it in chosen]
    count, beside_idle, usable = search.count, roots(around.idle), search.usable
    passed = {device.id: number for number, device in enumerate(usable)}  # the lowest index comes first
    spares = usable[0].pci_root in beside_idle
    most_held = (0, *accumulate((around.load.get(device.id, 0) for device in usable), max))

    def reason(device: RdmaDevice) -> str:
        number = passed[device.id]
        if most_held[number] > around.load.get(device.id, 0):  # one with a lower index is held by more pods
            return f"held by the fewest pods of {len(usable)} free"
        return _choice_of(search, number, count, spares and device.pci_root not in beside_idle)

    return [_Choice(device=it, why=f"{reason(it)}{words}") for it in chosen]


def _named(search: _Search) -> str:
    named = f"named by the request ({_describe(search.request.match)})"
    awaited = search.admitted.mode is Mode.EXCLUSIVE and any(device.lacks_netdev for device in search.free)
    return f"{named}; its netdev is not on the host and has to be in the pod" if awaited else named


def _choice_of(search: _Search, passed: int, count: int, spares: bool) -> str:
    """Return a text on why a device was chosen, for a request of `count` devices without GPUs. `passed` is the number
    of usable devices with a lower index. `spares`: the usable device with the lowest index is next to an idle GPU, and
    the chosen device is not."""
    if passed and spares:
        return f"not next to an idle GPU, of {len(search.usable)} free"
    return f"{'leaves most to later pods,' if passed >= count else 'lowest index'} of {len(search.usable)} free"


def _choose_near_gpus(search: _Search) -> list[_Choice]:
    """Choose devices near the pod's GPUs, in the order of the GPUs. Raise PlacementError if the request is strict and a
    device would be too far from its GPU."""
    problem = search.request.gpus_problem or ("" if search.gpus else "no GPU is known")
    if problem:
        return _choose_without_gpus(search, problem)
    picks = near_gpus(search.free, search.count, search.gpus, search.served, search.around)
    for pick in picks:
        if _is_strict(search.request) and pick.far > FARTHEST_ALIGNED:
            raise _too_far(search, pick)
    return [_Choice(device=it.device, why=_why_near(search, it), gpu=it.gpu) for it in picks]


def _choose_without_gpus(search: _Search, problem: str) -> list[_Choice]:
    if _is_strict(search.request):
        if search.request.gpus_problem:
            raise _not_aligned(search, problem, "make sure that the pod's GPUs are reported, or leave strict out")
        raise _not_aligned(search, "the pod's GPUs are not known", "name them in gpus, or leave strict out")
    return [_Choice(device=it.device, why=f"{it.why}; {problem}") for it in _choose_on_numa(search)]


def _why_near(search: _Search, pick: Pick) -> str:
    told = f", told by {search.request.gpus_from}" if search.request.gpus_from else ""
    if pick.far <= search.nearest(pick.gpu):
        return f"nearest free device to GPU {pick.gpu.pci} ({pick.far.words}){told}"
    return f"for GPU {pick.gpu.pci} ({pick.far.words}){told}; the request has the nearer devices already"


def _choose_on_numa(search: _Search) -> list[_Choice]:
    """Choose devices on the NUMA nodes of the pod's GPUs. If no GPU is known, the pod's exclusive CPUs decide, then the
    NUMA nodes that the request names, then any one NUMA node. Raise PlacementError if a strict request cannot be
    fulfilled."""
    if search.request.gpus_problem and _is_numa_strict(search.request):
        raise _not_aligned(
            search, search.request.gpus_problem, "make sure that the pod's GPUs are reported, or leave strict out"
        )
    homes = {gpu.numa_node for gpu in search.gpus if gpu.numa_node is not None} or _of_cpus(search)
    if not homes and _is_numa_strict(search.request):
        lacking = "the NUMA nodes of its GPUs are" if search.gpus else "the pod's GPUs, or CPUs that it has alone, are"
        what = f"there is nothing to be near to: {lacking} not known"
        raise _not_aligned(search, what, f"{_NEAR_TO_SOMETHING}, or leave strict out")
    homes = homes or _one_numa_node(search)
    if not homes:
        return _choose_unaligned(search, "no NUMA node is known")
    chosen = anywhere(search.free, search.count, search.around, lambda device: device.numa_node not in homes)
    aligned = [device for device in chosen if device.numa_node in homes]
    home = f"NUMA node {_listed(sorted(str(number) for number in homes))}{_whose(search)}"
    if len(aligned) < len(chosen) and _is_numa_strict(search.request):
        what = f"{len(aligned)} of {search.count} devices are free on {home}"
        what += f": {_why_not(search)}" if search.obstacles else ""
        raise _not_aligned(search, what, "ask for fewer devices, or leave strict out")
    return [
        _Choice(device=it, why=f"on {home}" if it in aligned else f"{home} has no other free device") for it in chosen
    ]


_NEAR_TO_SOMETHING = (
    "ask for whole CPUs (requests = limits) on a node whose kubelet has cpuManagerPolicy: static, or for a GPU, or"
    " write match.numaNode"
)


def _of_cpus(search: _Search) -> set[int]:
    """Return the NUMA nodes of the CPUs that only this pod uses. If it has no such CPUs, return the NUMA nodes that the
    request names."""
    homes = {it.number for it in search.node.numa_nodes if any(map(it.has, search.request.cpus))}
    named = search.request.match.numa_node
    return homes or set(() if named is None else (named,) if isinstance(named, int) else named)


def _whose(search: _Search) -> str:
    return ", as the pod's CPUs" if search.request.cpus and not search.gpus else ""


def _one_numa_node(search: _Search) -> set[int]:
    """Return the best NUMA node in a set; the set is empty if no usable device has a known NUMA node. A NUMA node with
    enough devices is best if its devices have the fewest pods on average, then if it has the fewest free devices. If no
    NUMA node has enough devices, the one with the most free devices is best."""
    load, on = search.load, defaultdict[int, list[int]](list)
    for device in search.usable:
        if device.numa_node is not None:
            on[device.numa_node].append(load.get(device.id, 0))

    def order(home: int) -> tuple[bool, float, int, int]:
        free, pods = len(on[home]), sum(on[home]) / len(on[home])
        return (False, pods, free, home) if free >= search.count else (True, -free, 0, home)

    return {min(on, key=order)} if on else set()


_CHOICES: Mapping[AlignTo, Callable[[_Search], list[_Choice]]] = {
    AlignTo.GPU: _choose_near_gpus,
    AlignTo.NUMA: _choose_on_numa,
    AlignTo.NONE: _choose_any,
}


# Refusals


def _nothing_matches(search: _Search) -> PlacementError:
    request = search.request
    if not search.node.devices:
        hint = "run the pod on a node that has some"
        return PlacementError(ErrorCode.DEVICE_UNKNOWN, "this node has no RDMA device", where=request.where, hint=hint)
    elsewhere = _matching(request.match, search.node.devices)
    if elsewhere:
        return _not_in_pool(search, elsewhere)
    what = f"no RDMA device of this node matches {_describe(request.match)}"
    return PlacementError(
        ErrorCode.DEVICE_UNKNOWN, what, where=f"{request.where}.match", hint=_nearest(request.match, search.node)
    )


def _not_in_pool(search: _Search, matching: tuple[RdmaDevice, ...]) -> PlacementError:
    """Return the error for a request whose matching devices (`matching`) are all in another pool or in no pool."""
    pool, match = search.request.pool, search.request.match
    if not search.offer.by_pool[pool]:
        what, where = f"pool {pool} has no device on this node", search.request.where
    else:
        what, where = f"pool {pool} has no device that matches {_describe(match)}", f"{search.request.where}.match"
    places = (f"{device.name} is {_home(search.offer, device)}" for device in matching)
    homes = {home for device in matching if (home := search.offer.home_of(device))}
    remedy = f"ask for pool {' or '.join(sorted(homes))}" if homes else "the administrator puts it into a pool"
    has = _listed(device.name for device in search.offer.by_pool[pool])
    return PlacementError(
        ErrorCode.NOT_IN_POOL,
        what,
        where=where,
        hint=f"{remedy}; {pool} has {has}",
        detail=_listed(places),
    )


def _home(offer: Offer, device: RdmaDevice) -> str:
    contested = offer.contested.get(device.id)
    if contested:
        return f"selected by the pools {' and '.join(contested)}, so that none of them has it"
    home = offer.home_of(device)
    return f"in pool {home}" if home else "in no pool"


def _nearest(match: Match, node: Node) -> str:
    """Return a hint that lists the names most similar to the unknown name in `match`, then all existing names."""
    spellings = _spellings(match, node.devices)
    each = ((one, names) for _, it, names in spellings for one in (it if isinstance(it, tuple) else (it,)))
    for wanted, names in each:
        if wanted is not None and str(wanted) not in names:
            near = difflib.get_close_matches(str(wanted), names, n=3)
            return f"nearest are {_listed(near)}; there are {_listed(names)}" if near else f"there are {_listed(names)}"
    return f"the devices are {_listed(device.name for device in node.devices)}"


def _spellings(match: Match, devices: Collection[RdmaDevice]) -> tuple[tuple[str, object, list[str]], ...]:
    """Return each key of `match` that names devices, with the value in `match` and the names that exist on the node."""
    return (
        ("device", match.device, [device.name for device in devices]),
        ("netdev", match.netdev, [netdev.name for device in devices for netdev in device.netdevs]),
        ("pci", match.pci, [str(device.pci) for device in devices if device.pci]),
    )


def _too_few(search: _Search) -> PlacementError:
    where = search.request.where
    if len(search.matching) == 1 and search.count == 1 and _names_device(search.request.match):
        device = search.matching[0]
        obstacle = search.obstacles[device.id]
        return PlacementError(obstacle.code, f"{device.name} is {obstacle.what}", where=where, hint=obstacle.hint)
    asked = search.request.count_words
    return PlacementError(
        ErrorCode.DEVICES_EXHAUSTED,
        f"asked {asked}, free {len(search.free)} of {len(search.matching)} devices of pool {search.request.pool}"
        f"{' that match' if search.request.match != Match() else ''}",
        where=where,
        hint=_instead(search),
        detail=", ".join(filter(None, (_why_not(search), _contested(search), _names_in_vain(search)))),
    )


def _contested(search: _Search) -> str:
    """Return a text with the matching devices that the pool would have if no other pool selected them, too; "" if there
    are none."""
    both = {it: pools for it, pools in search.offer.contested.items() if search.request.pool in pools}
    lost = _matching(search.request.match, (it for it in search.node.devices if it.id in both))
    return _listed(f"{it.name} is {_home(search.offer, it)}" for it in lost) if lost else ""


def _names_in_vain(search: _Search) -> str:
    """Return a text with the names in `match` that belong to no device of the pool; "" if there are none. Only keys
    with a list of names count."""
    pool = search.request.pool
    lacking = []
    for key, wanted, names in _spellings(search.request.match, search.offer.by_pool[pool]):
        vain = [str(it) for it in wanted if str(it) not in names] if isinstance(wanted, tuple) else []
        lacking += [f"{key} {' or '.join(vain)}"] if vain else []
    return f"pool {pool} has no {' and no '.join(lacking)}" if lacking else ""


def _instead(search: _Search) -> str:
    """Return the hint of an error about too few free devices: the steps that would help."""
    obstacles = search.obstacles.values()
    in_vain, contested = _names_in_vain(search), _contested(search)
    if not obstacles and not in_vain and not contested:
        return "ask for fewer devices: there are no more"
    fewer = "ask for fewer devices" if search.request.count else "write count: free to get those that are free now"
    steps = (
        fewer if search.free else "",
        "correct match" if in_vain else "",
        _remedies(obstacles),
        "have the administrator let only one pool select them" if contested else "",
    )
    return ", or ".join(filter(None, steps)) or "ask for fewer devices"


def _remedies(obstacles: Iterable[_Obstacle]) -> str:
    return ", or ".join(dict.fromkeys(it.remedy for it in obstacles if it.remedy))


def _why_not(search: _Search) -> str:
    names = {device.id: device.name for device in search.matching}
    alike: dict[str, list[str]] = {}
    for device_id, obstacle in search.obstacles.items():
        alike.setdefault(obstacle.what, []).append(names[device_id])
    reasons = [f"{_listed(them)} {'is' if len(them) == 1 else 'are'} {what}" for what, them in alike.items()]
    lengths = accumulate(len(it) + 2 for it in reasons)
    told = sum(1 for length in lengths if length <= _MAX_REASONS) or 1
    more = [f"and {len(reasons) - told} more"] if len(reasons) > told else []
    return ", ".join([*reasons[:told], *more])


def _too_far(search: _Search, pair: Pick) -> PlacementError:
    barred = (device for device in search.matching if device.id in search.obstacles)
    near = [device for device in barred if search.distance(device, pair.gpu) <= FARTHEST_ALIGNED]
    why = "".join(f"; {device.name} is {search.obstacles[device.id].what}" for device in near[:_MAX_NAMED])
    is_nearest = pair.far == search.nearest(pair.gpu)
    left = "nearest free device to" if is_nearest else "device that is left for"
    what = f"the {left} GPU {pair.gpu.pci} is {pair.device.name} ({pair.far.words}){why}"
    instead = _remedies(search.obstacles[device.id] for device in near) or "ask for fewer devices"
    return _not_aligned(search, what, f"{instead}, or leave strict out")


def _not_aligned(search: _Search, what: str, hint: str) -> PlacementError:
    align = search.request.align or Align(to=AlignTo.GPU)
    return PlacementError(
        ErrorCode.NOT_ALIGNED, f"not aligned to {align.to}: {what}", where=search.request.where, hint=hint
    )


def _listed(words: Iterable[str]) -> str:
    """Return the words joined by commas; of more than 16 words only the first 16 are named."""
    every = list(words)
    more = f", and {len(every) - _MAX_NAMED} more" if len(every) > _MAX_NAMED else ""
    return (", ".join(every[:_MAX_NAMED]) + more) if every else "none"
