"""Who may ask for what on this node.

Decides from the node's pools, its kernel and the pod's network whether each request may be served, and in which mode;
whether a device is left for it is for placement to say. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.device import CharKind, Node, RdmaNetns
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, DeviceRequest, Isolation, Mode, PodRequest

DEFAULT_POOL = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A name that pods ask by, with the modes it serves; the first is for requests that name none."""

    name: str
    modes: tuple[Mode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What this node offers. `char_kinds` are the character devices that pods may have at all."""

    pools: Mapping[str, Pool]
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that may be served, with its mode decided."""

    request: DeviceRequest
    mode: Mode


def default_policy(allow_exclusive: bool) -> Policy:
    """Without a configuration: one pool of everything, exclusive only where the administrator said so."""
    modes = (Mode.EXCLUSIVE, Mode.SHARED) if allow_exclusive else (Mode.SHARED,)
    return Policy(pools=MappingProxyType({DEFAULT_POOL: Pool(name=DEFAULT_POOL, modes=modes)}))


def admit(policy: Policy, node: Node, request: PodRequest, host_network: bool) -> tuple[Admitted, ...]:
    """The requests with their modes. Raises the first refusal: PlacementError where this node does not serve the
    request, RequestError where no node would."""
    return tuple(_admit_one(policy, node, item, host_network) for item in request.requests)


def isolation_of(rdma_netns: RdmaNetns, mode: Mode) -> Isolation | None:
    """What a request gets on such a kernel; None where others may have the device too."""
    if mode is Mode.SHARED:
        return None
    return Isolation.HARD if rdma_netns is RdmaNetns.EXCLUSIVE else Isolation.SOFT


def refuse_memlock(request: PodRequest, ceiling: int, dropped_by: str = "") -> None:
    """Raise PlacementError for a limit above `ceiling` bytes, the most that the runtime may set, and for every limit
    when `dropped_by` names a runtime that sets none.

    Otherwise the container would fail later, with the OCI runtime's words instead of ours, or run without the limit.
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


def refuse_misfits(rdma_netns: RdmaNetns, admitted: Iterable[Admitted]) -> None:
    """Raise PlacementError where the kernel's setting of this moment does not fit: it may have changed since the node
    was read."""
    for item in admitted:
        refusal = _misfit(rdma_netns, item.request, item.mode)
        if refusal is not None:
            raise refusal


def _admit_one(policy: Policy, node: Node, request: DeviceRequest, host_network: bool) -> Admitted:
    pool = policy.pools.get(request.pool)
    if pool is None:
        raise _unknown_pool(policy, request)
    question = _Question(
        policy=policy,
        pool=pool,
        node=node,
        request=request,
        mode=request.mode or pool.modes[0],
        host_network=host_network,
    )
    for rule in _RULES:
        refusal = rule(question)
        if refusal is not None:
            raise refusal
    return Admitted(request=request, mode=question.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    policy: Policy
    pool: Pool
    node: Node
    request: DeviceRequest
    mode: Mode
    host_network: bool


def _unknown_pool(policy: Policy, request: DeviceRequest) -> PlacementError:
    return PlacementError(
        ErrorCode.POOL_UNKNOWN,
        f"this node has no pool {request.pool}",
        where=request.where,
        hint=f"ask for one of its pools: {', '.join(sorted(policy.pools)) or 'there is none'}",
    )


def _mode_is_served(question: _Question) -> NriRdmaError | None:
    pool, mode = question.pool, question.mode
    if mode in pool.modes:
        return None
    switch = "starts the daemon with --allow-default-pool" if pool.name == DEFAULT_POOL else f"adds {mode} to its modes"
    return PlacementError(
        ErrorCode.POOL_MODE,
        f"pool {pool.name} serves {' and '.join(pool.modes)}, not {mode}",
        where=question.request.where,
        hint=f"ask for mode: {pool.modes[0]}, or the administrator {switch}",
    )


def _char_kinds_are_allowed(question: _Question) -> NriRdmaError | None:
    refused = sorted(question.request.char_kinds - question.policy.char_kinds)
    if not refused:
        return None
    return PlacementError(
        ErrorCode.POLICY_DEVICES,
        f"pods may not have {' and '.join(refused)} devices on this node",
        where=f"{question.request.where}.devices",
        hint=f"ask for some of {', '.join(sorted(question.policy.char_kinds))}; others can manage the whole fabric",
    )


def _pod_has_a_network_of_its_own(question: _Question) -> NriRdmaError | None:
    if not question.host_network or question.mode is Mode.SHARED:
        return None
    return PlacementError(
        ErrorCode.HOST_NETWORK,
        "mode exclusive moves the netdev into the pod, but this pod is on the host's network",
        where=question.request.where,
        hint="ask for mode: shared, or remove hostNetwork: true from the pod",
    )


def _interface_moves(question: _Question) -> NriRdmaError | None:
    if question.mode is Mode.EXCLUSIVE or question.request.interface.is_empty:
        return None
    return RequestError(
        ErrorCode.ANNOTATION_VALUE,
        "in mode shared the netdev stays on the host, so that the pod cannot set its name, MTU or addresses",
        where=f"{question.request.where}.interface",
        hint="remove interface, or ask for mode: exclusive",
    )


def _isolation_fits_the_mode(question: _Question) -> NriRdmaError | None:
    if question.mode is Mode.EXCLUSIVE or question.request.isolation is Isolation.SOFT:
        return None
    return RequestError(
        ErrorCode.ANNOTATION_VALUE,
        "what others may have too cannot be hidden from them",
        where=f"{question.request.where}.isolation",
        hint="ask for mode: exclusive, or isolation: soft",
    )


def _kernel_setting_fits(question: _Question) -> NriRdmaError | None:
    return _misfit(question.node.rdma_netns, question.request, question.mode)


def _misfit(rdma_netns: RdmaNetns, request: DeviceRequest, mode: Mode) -> PlacementError | None:
    if rdma_netns is RdmaNetns.EXCLUSIVE and mode is Mode.SHARED:
        return _hidden(request)
    if rdma_netns is not RdmaNetns.EXCLUSIVE and request.isolation is Isolation.HARD:
        return _visible(request)
    return None


def _visible(request: DeviceRequest) -> PlacementError:
    return PlacementError(
        ErrorCode.RDMA_NETNS,
        "this kernel does not hide RDMA devices from other network namespaces, so that others could open the pod's",
        where=f"{request.where}.isolation",
        hint="ask for isolation: soft, or on the node: `rdma system set netns exclusive` while no pod runs,"
        " or ib_core.netns_mode=0 at boot",
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
    if question.request.limits is None or question.node.rdma_cgroup:
        return None
    return PlacementError(
        ErrorCode.LIMITS_UNSUPPORTED,
        "this node cannot limit RDMA resources: its containers' cgroups have no rdma controller",
        where=f"{question.request.where}.limits",
        hint="remove limits, or use a node with cgroup v2 whose cgroup.controllers lists rdma",
    )


_RULES: tuple[Callable[[_Question], NriRdmaError | None], ...] = (
    _mode_is_served,
    _char_kinds_are_allowed,
    _pod_has_a_network_of_its_own,
    _interface_moves,
    _isolation_fits_the_mode,
    _kernel_setting_fits,
    _limits_are_kept,
)
