"""Decides which pods may ask for which devices on this node.

Decides for each request whether it may be served, and in which mode; and which devices each pool has. The node's pools
and rules, its kernel settings and the runtime's facts about the pod decide. Whether a device is free is decided by
placement. Pure.

Law: a device is in one pool at most. A device that two pools select is in no pool, because it would be unclear whose
rules apply. The first rule that concerns both the pod and the pool decides; if there are rules and none concerns both,
the request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import Protocol

from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from nri_rdma.model.device import CharKind, DeviceId, Node, RdmaDevice, RdmaNetns
from nri_rdma.model.edits import HINT_PREFIXES
from nri_rdma.model.pool import DEFAULT_POOL, Asker, DownPorts, Pool, PoolDoor, Rule, ShareGives, any_matches
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, DeviceRequest, Isolation, Mode, PodRequest, RdmaLimits, Use
from nri_rdma.model.rights import DEFAULT_RIGHTS, keys_of, rights_needed
from nri_rdma.text.modefit import misfits

__all__ = [
    "DEFAULT_POOL",
    "Admitted",
    "Asker",
    "Offer",
    "Policy",
    "Pool",
    "Rule",
    "admit",
    "configured_policy",
    "default_policy",
    "first_mode",
    "offer",
    "policy_of",
    "refuse_part",
    "rule_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The pools and rules of this node: they decide which pods may get which devices. `char_kinds` are the kinds of
    character devices that pods may have if there are no rules."""

    pools: Mapping[str, Pool]
    rules: tuple[Rule, ...] = ()
    sandboxed_handlers: tuple[str, ...] = ()
    """The runtime handlers whose containers have a kernel of their own, as patterns with ``*`` and ``?``."""
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS
    names_holders: bool = False
    """Whether an error that a pod's author reads may name the other pods that have the devices. The log and the status
    always name them."""
    closed: str = ""
    """Why the policy is unknown (its configuration cannot be read), so that every request is refused; "" if it is
    known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The devices of each pool on a node. `contested` has the devices that several pools select, with the names of the
    pools; no pool gets such a device."""

    by_pool: Mapping[str, tuple[RdmaDevice, ...]]
    contested: Mapping[DeviceId, tuple[str, ...]]
    shares_per_device: Mapping[str, int] = field(default_factory=dict)
    """By pool: the most shares (ids that the kubelet allocates) for which each of its devices may be given. Only pools
    in which a share gives one device are listed."""
    refusing_down: frozenset[str] = frozenset()
    """The pools that refuse to give a device without an active port."""

    def home_of(self, device: RdmaDevice) -> str:
        """Return the name of the pool that has the device; "" if no pool has it."""
        return next((name for name, devices in self.by_pool.items() if device in devices), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that may be served, with its mode and with all that its pool adds. `is_watched`: another pod with admin
    access may have opened one of its devices."""

    request: DeviceRequest
    mode: Mode
    is_watched: bool = False
    env: tuple[tuple[str, str], ...] = ()
    """The variables that the pool's configuration gives, for the fabric's libraries."""

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """The variables of `env` that a container gets. If its devices are for storage, variables of NCCL and UCX are
        left out, because these libraries should not use such devices."""
        if self.request.use is not Use.STORAGE:
            return self.env
        return tuple((name, value) for name, value in self.env if not name.startswith(HINT_PREFIXES))


def policy_of(
    pools: Iterable[Pool],
    rules: tuple[Rule, ...],
    *,
    allow_default_pool: bool,
    sandboxed_handlers: tuple[str, ...] = (),
) -> Policy:
    """Return the policy of these pools, rules and runtime handlers. Without configured pools the policy has one pool
    with all devices; `allow_default_pool` allows mode exclusive in that pool."""
    configured = {pool.name: pool for pool in pools}
    if not configured:
        return replace(default_policy(allow_default_pool), rules=rules, sandboxed_handlers=sandboxed_handlers)
    return Policy(pools=MappingProxyType(configured), rules=rules, sandboxed_handlers=sandboxed_handlers)


class PolicySettings(Protocol):
    """The settings from which a policy is made."""

    @property
    def pools(self) -> tuple[Pool, ...]: ...

    @property
    def rules(self) -> tuple[Rule, ...]: ...

    @property
    def allow_default_pool(self) -> bool: ...

    @property
    def sandboxed_handlers(self) -> tuple[str, ...]: ...

    @property
    def name_holders(self) -> bool: ...


def configured_policy(settings: PolicySettings, closed: str = "") -> Policy:
    """Return the policy of the settings. `closed` says why the configuration cannot be read; "" if it can."""
    policy = policy_of(
        settings.pools,
        settings.rules,
        allow_default_pool=settings.allow_default_pool,
        sandboxed_handlers=settings.sandboxed_handlers,
    )
    return replace(policy, closed=closed, names_holders=settings.name_holders)


def default_policy(allow_exclusive: bool) -> Policy:
    """Return the policy of a node without configured pools: one pool with all devices, shared. If the administrator
    allows it, requests may also ask for mode exclusive."""
    modes = (Mode.SHARED, Mode.EXCLUSIVE) if allow_exclusive else (Mode.SHARED,)
    return Policy(pools=MappingProxyType({DEFAULT_POOL: Pool(name=DEFAULT_POOL, modes=modes)}))


def offer(policy: Policy, node: Node) -> Offer:
    """Return the devices of each pool. Devices in use are included: use only decides whether a device can be given
    now."""
    selecting = {
        device.id: tuple(name for name, pool in policy.pools.items() if pool.has(device)) for device in node.devices
    }
    by_pool = {
        name: tuple(device for device in node.devices if selecting[device.id] == (name,)) for name in policy.pools
    }
    return Offer(
        by_pool=by_pool,
        contested={device_id: names for device_id, names in selecting.items() if len(names) > 1},
        shares_per_device={
            name: -(-policy.pools[name].shares // len(devices))
            for name, devices in by_pool.items()
            if devices and policy.pools[name].shares and policy.pools[name].gives is ShareGives.ONE
        },
        refusing_down=frozenset(name for name, pool in policy.pools.items() if pool.down_ports is DownPorts.REFUSE),
    )


def admit(policy: Policy, node: Node, request: PodRequest, asker: Asker) -> tuple[Admitted, ...]:
    """Check each request by the pool, the rules and the kernel, and return the requests with their modes. Raise the
    error of the first request that is refused: PlacementError if this node does not serve it, RequestError if no node
    would."""
    return tuple(_admit_one(policy, node, item, asker) for item in request.requests)


def rule_of(policy: Policy, asker: Asker, pool: str) -> Rule | None:
    """Return the first rule that concerns this pod and this pool; None if none does."""
    return next((rule for rule in policy.rules if rule.concerns(asker, pool)), None)


def is_proven(pool: Pool, request: DeviceRequest) -> bool:
    """Return whether a test must move data through the request's devices before its containers start. The request's own
    setting `prove` decides. If it has none, the pool's setting decides; requests with admin access or without devices
    for verbs are then not tested."""
    if request.prove is not None:
        return request.prove
    return pool.prove and CharKind.UVERBS in request.char_kinds and not request.admin_access


def first_mode(policy: Policy, node: Node, asker: Asker, pool: Pool) -> Mode:
    """Return the mode for a request that names no mode: the pool's first mode that the rule allows and the kernel can
    serve."""
    return _first_mode(pool, rule_of(policy, asker, pool.name), node)


def refuse_part(policy: Policy, node: Node, part: DeviceRequest, asker: Asker) -> None:
    """Raise PlacementError if the pod has no right to ask the pool for `part`, a request with only some of the keys.
    Its mode is checked if it names one. Whether it fits the node and the other keys is not checked."""
    question = _question(policy, node, part, asker)
    for check in _RIGHTS:
        refusal = check(question) if part.mode is not None or check not in _RIGHTS_OVER_MODES else None
        if refusal is not None:
            raise refusal


def admit_granted(node: Node, request: DeviceRequest, asker: Asker) -> Admitted:
    """Check a request for devices that another program gave to the pod, and return it with its mode. Pools and rules do
    not apply. Raise PlacementError if the kernel or the pod's network cannot serve the request, RequestError if its
    keys contradict each other."""
    mode = request.mode or Mode.SHARED
    question = _Question(
        policy=_ANY,
        pool=Pool(name=request.pool, modes=tuple(Mode)),
        rule=None,
        node=node,
        request=request,
        mode=mode,
        asker=asker,
    )
    for check in _KERNEL_CHECKS:
        refusal = check(question)
        if refusal is not None:
            raise refusal
    return Admitted(request=request, mode=mode)


def isolation_of(rdma_netns: RdmaNetns, mode: Mode) -> Isolation | None:
    """Return how well a device is hidden from other pods, on a kernel with this setting. None in mode shared, in which
    other pods may have the device, too."""
    if mode is Mode.SHARED:
        return None
    return Isolation.HARD if rdma_netns is RdmaNetns.EXCLUSIVE else Isolation.SOFT


def refuse_handler(policy: Policy, request: PodRequest, asker: Asker) -> None:
    """Raise PlacementError if the pod's runtime handler runs containers in a kernel of their own: the pod would run
    without the node's devices."""
    if not request.requests or not any_matches(policy.sandboxed_handlers, asker.runtime_handler):
        return
    raise PlacementError(
        ErrorCode.POLICY_HANDLER,
        f"containers of runtime handler {asker.runtime_handler} have a kernel of their own, without the node's devices",
        where=request.requests[0].where,
        hint="use a runtime class of runc or crun, or the administrator changes sandboxed_handlers",
    )


def refuse_memlock(request: PodRequest, ceiling: int, dropped_by: str = "") -> None:
    """Raise PlacementError if a request's memlock is above `ceiling`, the highest limit in bytes that the runtime may
    set. Raise it for any memlock if `dropped_by` names a runtime that sets no limits.

    Otherwise the container would fail later with an error of the OCI runtime, or run without the limit.
    """
    for item in request.requests:
        if item.memlock is None:
            continue
        if dropped_by:
            raise PlacementError(
                ErrorCode.RUNTIME_TOO_OLD,
                f"{dropped_by} does not set RLIMIT_MEMLOCK for plugins",
                where=item.where,
                hint="take memlock away, or use containerd 1.7.7 or CRI-O 1.29 at least",
            )
        if item.memlock > ceiling:
            raise PlacementError(
                ErrorCode.MEMLOCK_LIMIT,
                f"the runtime may not raise RLIMIT_MEMLOCK above {ceiling} bytes",
                where=item.where,
                hint="ask for less, or give the runtime CAP_SYS_RESOURCE (LimitMEMLOCK=infinity for its unit)",
            )


def refuse_two_values(admitted: Iterable[Admitted], present_env: Collection[str] = ()) -> None:
    """Raise PlacementError if one container may get devices of two requests whose pools give a variable different
    values. Variables in `present_env` do not matter, because the container keeps its own values."""
    for one, other in combinations([item for item in admitted if item.env], 2):
        known = {name: value for name, value in one.variables if name not in present_env}
        differing = [(name, value) for name, value in other.variables if known.get(name, value) != value]
        if differing and one.request.scope.meets(other.request.scope):
            name, value = differing[0]
            raise PlacementError(
                ErrorCode.POOL_ENV,
                f"one container would get devices of two pools that set {name} differently: {known[name]} and {value}",
                where=other.request.where,
                hint="ask for devices of one of the pools, or give each container its own (containers:), or the"
                " administrator makes env of the pools agree",
            )


def refuse_misfits(rdma_netns: RdmaNetns, admitted: Iterable[Admitted]) -> None:
    """Raise PlacementError if `rdma_netns`, the kernel's setting for RDMA devices and network namespaces, does not
    allow the mode or isolation of a request. Called with the present setting, because it may have changed since the
    node was read."""
    for item in admitted:
        refusal = _misfit(rdma_netns, item.request, item.request.isolation, item.mode)
        if refusal is not None:
            raise refusal


def _admit_one(policy: Policy, node: Node, request: DeviceRequest, asker: Asker) -> Admitted:
    question = _question(policy, node, request, asker)
    for check in _CHECKS:
        refusal = check(question)
        if refusal is not None:
            raise refusal
    limits, isolation, use = question.limits, question.isolation, request.use or question.pool.use
    prove, version = is_proven(question.pool, request) or None, request.roce_version or question.pool.roce_version
    userspace = request.userspace or question.pool.userspace
    said = (request.limits, request.isolation, request.use, request.prove, request.userspace, request.roce_version)
    if said != (limits, isolation, use, prove, userspace, version):
        request = replace(
            request,
            limits=limits,
            isolation=isolation,
            use=use,
            prove=prove,
            userspace=userspace,
            roce_version=version,
        )
    return Admitted(request=request, mode=question.mode, env=question.pool.env)


def _question(policy: Policy, node: Node, request: DeviceRequest, asker: Asker) -> _Question:
    """Return the facts that the checks of a request need. Raise PlacementError if the pool is unknown or closed, or if
    no rule lets the pod ask for its devices."""
    pool = policy.pools.get(request.pool)
    if why := policy.closed or (pool.closed if pool is not None else ""):
        raise _closed(request, why)
    if pool is None:
        raise _unknown_pool(policy, request)
    rule = rule_of(policy, asker, pool.name)
    if policy.rules and (rule is None or not rule.allow):
        raise _denied(request, asker, rule)
    return _Question(
        policy=policy,
        pool=pool,
        rule=rule,
        node=node,
        request=request,
        mode=request.mode or _first_mode(pool, rule, node),
        asker=asker,
    )


def _first_mode(pool: Pool, rule: Rule | None, node: Node) -> Mode:
    """Return the mode for a request that names no mode: the pool's first mode that the rule allows and the kernel can
    serve. If there is none, return the first mode that pool and rule allow; another check then refuses the request."""
    permitted = rule.modes if rule is not None and rule.modes else pool.modes
    modes = [mode for mode in pool.modes if mode in permitted] or pool.modes
    hides = node.rdma_netns is RdmaNetns.EXCLUSIVE
    return next((mode for mode in modes if not (hides and mode is Mode.SHARED)), modes[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    policy: Policy
    pool: Pool
    rule: Rule | None
    node: Node
    request: DeviceRequest
    mode: Mode
    asker: Asker

    @property
    def char_kinds(self) -> frozenset[CharKind]:
        """The kinds of character devices that the request may have."""
        return self.policy.char_kinds if self.rule is None else self.rule.char_kinds

    @property
    def isolation(self) -> Isolation:
        """The least isolation from other pods that the request must get: hard if the pool requires it, or else as much
        as the request asks for."""
        return Isolation.HARD if self.pool.requires_isolation else self.request.isolation

    @property
    def maxima(self) -> tuple[tuple[str, RdmaLimits], ...]:
        """The highest limits that the pool and the rule permit, each with a text that names the pool or the rule."""
        by_rule = self.rule.max_limits if self.rule is not None else None
        told = ((f"pool {self.pool.name}", self.pool.max_limits), (str(self.rule), by_rule))
        return tuple((words, most) for words, most in told if most is not None)

    @property
    def limits(self) -> RdmaLimits | None:
        """The limits for the request's devices; None: no limits. A limit in the request counts. If the request does not
        set a limit, the least of the pool's default and the maxima of pool and rule counts."""
        most = [limits for _, limits in self.maxima]
        if self.request.limits is None and self.pool.limits is None and not most:
            return None
        asked, default = self.request.limits or RdmaLimits(), self.pool.limits or RdmaLimits()
        limits = RdmaLimits(
            hca_handles=_limit(asked.hca_handles, default.hca_handles, [it.hca_handles for it in most]),
            hca_objects=_limit(asked.hca_objects, default.hca_objects, [it.hca_objects for it in most]),
        )
        return None if limits == RdmaLimits() else limits


def _limit(asked: int | None, default: int | None, most: Iterable[int | None]) -> int | None:
    """Return the limit that was asked for, or else the least of the default and the maxima; None: no limit. A limit
    above a maximum is returned unchanged, because another check refuses it."""
    if asked is not None:
        return asked
    return min((number for number in (default, *most) if number is not None), default=None)


def _unknown_pool(policy: Policy, request: DeviceRequest) -> PlacementError:
    return PlacementError(
        ErrorCode.POOL_UNKNOWN,
        f"this node has no pool {request.pool}",
        where=request.where,
        hint=_instead_of_pool(policy, request),
    )


def _instead_of_pool(policy: Policy, request: DeviceRequest) -> str:
    asked = sorted(name for name, pool in policy.pools.items() if pool.door is PoolDoor.ANNOTATIONS)
    pools = f"ask for one of its pools: {', '.join(asked)}" if asked else _other_doors(policy)
    if request.pool in {"all", "free"}:
        return f"write {{count: {request.pool}}} for {request.pool} NICs of a pool; {pools}"
    return pools


def _other_doors(policy: Policy) -> str:
    """Return a hint that says how to ask for this node's pools if no pool can be asked by annotation."""
    resources = sorted(pool.resource for pool in policy.pools.values() if pool.door is PoolDoor.RESOURCE)
    ways = [f"{', '.join(resources)} in resources.limits of a container"] if resources else []
    ways += ["a ResourceClaim"] if any(it.door is PoolDoor.CLAIMS for it in policy.pools.values()) else []
    return f"ask by {' or '.join(ways)}: no pool of this node is asked by annotations" if ways else "there is no pool"


def _closed(request: DeviceRequest, why: str) -> PlacementError:
    return PlacementError(
        ErrorCode.POOL_CLOSED,
        f"pool {request.pool} is closed: {why}",
        where=request.where,
        hint="the administrator has to correct the configuration",
    )


def _denied(request: DeviceRequest, asker: Asker, rule: Rule | None) -> PlacementError:
    # Kubernetes allows only printable characters in a namespace; a direct client of the runtime may send any.
    namespace = asker.namespace if asker.namespace.isprintable() else ascii(asker.namespace)
    what_asks = "claim" if request.cdi_device else "pod"
    who = f"{what_asks} of namespace {namespace or 'unknown'}"
    handler = f" with runtime handler {asker.runtime_handler}" if asker.runtime_handler else ""
    if rule is None:
        what = f"no rule lets a {who}{handler} ask pool {request.pool}"
        hint = f"ask for another pool, or the administrator adds a [[rules]] for this {what_asks} to the configuration"
        if request.cdi_device:
            hint += ": one without podLabels and runtimeHandlers, because a claim has only a namespace"
    else:
        what = f"{rule} refuses pool {request.pool} to a {who}{handler}"
        hint = "ask for another pool, or the administrator changes that rule"
    return PlacementError(ErrorCode.POLICY_DENIED, what, where=request.where, hint=hint)


def _door_is_the_pools(question: _Question) -> NriRdmaError | None:
    pool, request = question.pool, question.request
    if pool.door is PoolDoor.ANNOTATIONS or request.shares or (pool.door is PoolDoor.CLAIMS and request.cdi_device):
        return None
    if pool.door is PoolDoor.CLAIMS:
        asked_by, hint = "a resource claim", "write a ResourceClaim for a DeviceClass of the pool"
    else:
        asked_by = f"the resource {pool.resource}"
        hint = f"write {pool.resource}: 1 into resources.limits of the container"
    return PlacementError(
        ErrorCode.POOL_DOOR,
        f"pool {pool.name} is asked by {asked_by}, not by an annotation",
        where=request.where,
        hint=f"{hint}, or ask for another pool",
    )


def _mode_is_served(question: _Question) -> NriRdmaError | None:
    pool, mode = question.pool, question.mode
    if mode in pool.modes:
        return None
    switch = (
        "starts the daemon with --allow-default-pool"
        if pool.name == DEFAULT_POOL and not pool.where
        else f"adds {mode} to its modes"
    )
    return PlacementError(
        ErrorCode.POOL_MODE,
        f"pool {pool.name} serves {' and '.join(pool.modes)}, not {mode}",
        where=question.request.where,
        hint=f"ask for mode: {_first_mode(pool, question.rule, question.node)}, or the administrator {switch}",
    )


def _mode_is_permitted(question: _Question) -> NriRdmaError | None:
    rule, mode = question.rule, question.mode
    if rule is None or not rule.modes or mode in rule.modes:
        return None
    common = [it for it in question.pool.modes if it in rule.modes]
    remedy = f"ask for mode: {common[0]}" if common else "ask for another pool"
    return PlacementError(
        ErrorCode.POLICY_MODE,
        f"{rule} permits {' and '.join(rule.modes)} of pool {question.pool.name}, not {mode}",
        where=question.request.where,
        hint=f"{remedy}, or the administrator changes that rule",
    )


def _char_kinds_are_allowed(question: _Question) -> NriRdmaError | None:
    refused = sorted(question.request.char_kinds - question.char_kinds)
    if not refused:
        return None
    by = (
        f"{question.rule} does not permit" if question.rule is not None else "without a rule for them pods may not have"
    )
    allowed = ", ".join(sorted(question.char_kinds)) or "none"
    return PlacementError(
        ErrorCode.POLICY_DEVICES,
        f"{by} {' and '.join(refused)} devices on this node",
        where=f"{question.request.where}.devices",
        hint=f"ask for some of {allowed}; umad and issm can manage the whole fabric",
    )


def _interface_is_permitted(question: _Question) -> NriRdmaError | None:
    rights = DEFAULT_RIGHTS if question.rule is None else question.rule.rights
    refused = [key for right, key in rights_needed(question.request) if right not in rights]
    if not refused:
        return None
    keys = " and ".join(refused)
    if question.rule is None:
        what, who = (
            f"without a rule that grants it pods may not have {keys}",
            "adds a rule with it to the configuration",
        )
    else:
        what, who = f"{question.rule} does not permit {keys}", "changes that rule"
    remedy = f"write only {', '.join(keys_of(rights))}" if rights else f"leave {keys} out"
    return PlacementError(
        ErrorCode.POLICY_INTERFACE,
        what,
        where=f"{question.request.where}.{refused[0].partition('.')[0]}",
        hint=f"{remedy}, or the administrator {who}",
    )


def _limits_are_permitted(question: _Question) -> NriRdmaError | None:
    asked = question.request.limits or RdmaLimits()
    for words, most in question.maxima:
        for key, number, bound in (
            ("hcaHandles", asked.hca_handles, most.hca_handles),
            ("hcaObjects", asked.hca_objects, most.hca_objects),
        ):
            if number is not None and bound is not None and number > bound:
                return PlacementError(
                    ErrorCode.POLICY_LIMITS,
                    f"{words} permits up to {bound} {key}, not {number}",
                    where=f"{question.request.where}.limits.{key}",
                    hint=f"ask for at most {bound}, or the administrator raises maxLimits",
                )
    return None


def _pod_has_a_network_of_its_own(question: _Question) -> NriRdmaError | None:
    if not question.asker.host_network or question.mode is Mode.SHARED:
        return None
    kept = " (delete it: until then its claim keeps the device from others)" if question.request.cdi_device else ""
    shared = "a resource whose pool has mode shared" if question.request.shares else "mode: shared"
    return PlacementError(
        ErrorCode.HOST_NETWORK,
        "mode exclusive moves the netdev into the pod, but this pod is on the host's network",
        where=question.request.where,
        hint=f"ask for {shared}, or remove hostNetwork: true from the pod{kept}",
    )


def _keys_fit_the_mode(question: _Question) -> NriRdmaError | None:
    return next(misfits(question.request, question.mode), None)


def _kernel_setting_fits(question: _Question) -> NriRdmaError | None:
    return _misfit(question.node.rdma_netns, question.request, question.isolation, question.mode)


def _misfit(rdma_netns: RdmaNetns, request: DeviceRequest, isolation: Isolation, mode: Mode) -> PlacementError | None:
    if rdma_netns is RdmaNetns.EXCLUSIVE and mode is Mode.SHARED:
        return _hidden(request)
    if rdma_netns is not RdmaNetns.EXCLUSIVE and isolation is Isolation.HARD:
        return _visible(request)
    return None


def _visible(request: DeviceRequest) -> PlacementError:
    return PlacementError(
        ErrorCode.RDMA_NETNS,
        "this kernel does not hide RDMA devices from other network namespaces, so that others could open the pod's",
        where=f"{request.where}.isolation",
        hint="ask for isolation: soft of a pool that has it, or on the node: `rdma system set netns exclusive` while no"
        " pod runs, or ib_core.netns_mode=0 at boot",
    )


def _hidden(request: DeviceRequest) -> PlacementError:
    return PlacementError(
        ErrorCode.RDMA_NETNS,
        "this kernel hides RDMA devices from other network namespaces, so that a shared one would be invisible in the"
        " pod",
        where=request.where,
        hint="on the node: `rdma system set netns shared` while no pod runs, or ib_core.netns_mode=1 at boot",
    )


def _limits_are_kept(question: _Question) -> NriRdmaError | None:
    if question.limits is None or question.node.rdma_cgroup:
        return None
    remedy = "remove limits" if question.request.limits is not None else "ask for a pool without limits"
    return PlacementError(
        ErrorCode.LIMITS_UNSUPPORTED,
        "this node cannot limit RDMA resources: its containers' cgroups have no rdma controller",
        where=f"{question.request.where}.limits" if question.request.limits is not None else question.request.where,
        hint=f"{remedy}, or use a node with cgroup v2 whose cgroup.controllers lists rdma",
    )


_KERNEL_CHECKS: tuple[Callable[[_Question], NriRdmaError | None], ...] = (
    _pod_has_a_network_of_its_own,
    _keys_fit_the_mode,
    _kernel_setting_fits,
    _limits_are_kept,
)
_RIGHTS_OVER_MODES = (_mode_is_served, _mode_is_permitted)
_RIGHTS: tuple[Callable[[_Question], NriRdmaError | None], ...] = (
    _door_is_the_pools,
    *_RIGHTS_OVER_MODES,
    _char_kinds_are_allowed,
    _interface_is_permitted,
    _limits_are_permitted,
)
_CHECKS = (*_RIGHTS, *_KERNEL_CHECKS)
_ANY = Policy(pools=MappingProxyType({}))
