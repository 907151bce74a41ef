"""Explains what a pod would get on a node, and why.

The daemon's own functions make the decision, here for a pod that does not exist yet. In addition, this module finds out
why the other devices were not chosen. Pure.

Unlike the daemon at a sandbox's start, this module knows the pod's containers. So it refuses a request for a container
that the pod does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count as numbered

from nri_rdma.attach.numbers import Resolved, refuse_missing
from nri_rdma.attach.plan import NetdevMove, Plan, plan_attach, with_inherited
from nri_rdma.attach.survey import attached_requests
from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.commands.explain.remarks import remarks, sentence
from nri_rdma.decide.decision import MemlockBounds, Question, decide
from nri_rdma.decide.device_ids import offered_devices, preferred
from nri_rdma.decide.gpus import KnownGpus, PodGpus, is_gpu_resource, is_mig_resource, is_near_numa, may_use_gpus
from nri_rdma.decide.granted import requests_of
from nri_rdma.decide.inheritance import leading_away
from nri_rdma.decide.inject import USUAL_INTERFACE, AttachedRequest, inject
from nri_rdma.decide.placement import Holding, Placed, Taken, mismatch, place
from nri_rdma.decide.policy import Admitted, Offer, Policy, isolation_of, offer
from nri_rdma.decide.share_limits import share_limits
from nri_rdma.decide.share_requests import down_words, share_requests
from nri_rdma.decide.topology import Distance, distance
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import CharKind, Netdev, Node, Protocol, RdmaDevice
from nri_rdma.model.edits import RDMA_MAX
from nri_rdma.model.link import LinkState
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.pool import DEFAULT_POOL, Pool, ShareGives
from nri_rdma.model.request import UNLIMITED, Align, AlignTo, DeviceRequest, Mode, PodRequest, Use
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import Lifelines
from nri_rdma.text.annotations import meant_key, parse_pod_request
from nri_rdma.text.manifest import ContainerManifest, PodManifest, shared_addresses, unknown_containers
from nri_rdma.text.pools import MAX_SHARES
from nri_rdma.text.refusals import bounded, listed

MAX_DIGITS = 9
MULTUS_NETWORKS = "k8s.v1.cni.cncf.io/networks"
"""The annotation with which pods ask Multus for networks in addition to the cluster's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """A netdev that is in a pod now. `netdev` describes it as it was on the host."""

    owner: str
    device: str
    netdev: Netdev


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNetwork:
    """The host's network configuration: its routing `rules`, and in `carried` its netdevs by ifindex, with their
    addresses, routes and neighbours."""

    carried: Mapping[int, LinkState]
    rules: tuple[KnownRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The input of the decision. `default_memlock` and `memlock_ceiling` are values of RLIMIT_MEMLOCK in bytes."""

    node: Node
    policy: Policy
    taken: Taken
    annotation_prefix: str
    away: tuple[Away, ...] = ()
    default_memlock: int | None = None
    memlock_ceiling: int = UNLIMITED
    memlock_dropped_by: str = ""
    grants: tuple[CdiGrant, ...] = ()
    """The CDI devices that the flags --cdi-device name for containers. Only CDI devices that nri-rdma handles are
    here."""
    present: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """The device nodes that containers get from other programs: for each container a mapping from path to (major,
    minor)."""
    adoption: Adoption = field(default_factory=Adoption)
    kubelet_tells: bool = False
    """Whether the kubelet reports to the daemon which of its devices each container has."""
    gpus: Mapping[str, KnownGpus] = field(default_factory=dict)
    """The GPUs that the kubelet would allocate, by container. The GPUs of a container that is missing here are not
    known."""
    gpus_are_reported: bool = True
    """Whether the kubelet reports GPUs to the daemon. If not, the daemon places devices without regard to GPUs."""
    lifelines: Lifelines = field(default_factory=Lifelines)
    host: HostNetwork | None = None
    """The host's network configuration; None if it is not known."""
    pods_have_networks: bool = True
    """Whether a pod has its network before its containers are created. False for containers of podman and Docker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One device of the node, as a candidate for one request. `given`: the request gets it. `free`: the request could
    get it. `why` is the reason.

    `gpu` is the GPU that the device serves, otherwise the nearest of the request's GPUs, and `distance` is the distance
    to it. Both are None if the request has no GPU.
    """

    device: str
    pci: str | None
    numa_node: int | None
    state: str
    given: bool
    free: bool
    why: str
    gpu: str | None
    distance: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRequest:
    """A request, with all devices of the node as its candidates. The devices that the request gets come first.

    `pool` is "" if a CDI device chooses the devices. `isolation` is "" if the devices are not isolated from other pods.
    """

    name: str
    where: str
    count: str
    pool: str
    cdi_device: str
    mode: Mode
    isolation: str
    prove: bool
    gpus: tuple[str, ...]
    gpus_from: str
    gpus_problem: str
    devices: tuple[str, ...]
    """The names of the devices that the request gets."""
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNetdev:
    """A netdev that moves into the pod. `takes` names the kinds of configuration that move with it. `left_out`
    describes the configuration that stays on the host; None if that is not known before the pod runs."""

    device: str
    host_name: str
    mac: str
    pod_name: str
    mtu: int
    addresses: tuple[str, ...]
    takes: tuple[str, ...]
    left_out: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNode:
    """A device node of a container. `mode` is octal."""

    path: str
    major: int
    minor: int
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedContainer:
    """The changes to a container. `kept_env` are variables that nri-rdma would set, but leaves alone because the
    container sets them itself."""

    name: str
    privileged: bool
    resources: Mapping[str, str]
    claims: tuple[str, ...]
    gpus: tuple[str, ...]
    """The GPUs that the flag --gpu names for the container."""
    requests: tuple[str, ...]
    char_devices: tuple[ExplainedNode, ...]
    env: Mapping[str, str]
    kept_env: tuple[str, ...]
    memlock: int | str | None
    """RLIMIT_MEMLOCK: a number of bytes, or `unlimited`; None leaves it to the runtime."""
    asks_memlock: bool
    """Whether the pod asks for `memlock`. Otherwise it is the node's default."""
    unified: Mapping[str, str]
    """The files of the container's cgroup that are written, with their content."""
    chooses_gid: bool
    """Whether nri-rdma chooses a GID for the container's libraries, because the container gets RoCE devices."""
    counted: tuple[str, ...]
    """The names of the container's resources that only the scheduler counts, and that no device plugin serves."""
    shares: tuple[str, ...]
    """The names of the container's resources that are extended resources of the node's pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The result for a pod, and the document of `explain -o json`. The pod asks for nothing (no `requests`), is refused
    (`refusal`), or gets devices for its containers. `undetermined`: the result depends on GPUs or CPUs that the kubelet
    chooses.

    `holds` are the devices that a pod of this name has now; the result assumes that it returns them first. `notes` are
    sentences about the manifest: what cannot be known from it, and what is probably a mistake.
    """

    kind: str
    pod: str
    holds: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    refusal: NriRdmaError | None = None
    undetermined: bool = False
    awaits_cpus: bool = False
    """Whether the result depends on the CPUs that the kubelet gives to a container. That is so for a request near CPUs,
    if none of its containers has a GPU."""
    requests: tuple[ExplainedRequest, ...] = ()
    netdevs: tuple[ExplainedNetdev, ...] = ()
    containers: tuple[ExplainedContainer, ...] = ()


def explain(pod: PodManifest, facts: Facts) -> Explanation:
    """Return what the pod would get. If a pod of this name holds devices now, it is assumed to return them first."""
    facts = replace(facts, grants=_own_grants(pod, facts.grants), gpus=_own_gpus(pod, facts))
    holds = tuple(device.name for device in facts.node.devices if _holds(pod, facts.taken.get(device.id, frozenset())))
    told = Explanation(kind=pod.kind, pod=str(pod), holds=holds)
    facts = _given_back(facts, str(pod))
    notes = tuple(_spelling_notes(pod, facts.annotation_prefix))
    try:
        request = parse_pod_request(pod.annotations, facts.annotation_prefix)
        refuse_unknown_containers(pod, request, facts.annotation_prefix)
        _refuse_more_than_there_are(pod, facts)
        shares = _shares(pod, facts)
        if request is None and not shares and not requests_of(facts.grants, facts.adoption):
            notes += tuple(_remark_notes(pod, request, facts))
            containers = tuple(_container(item, (), Plan(), facts) for item in pod.containers)
            return replace(told, notes=notes, containers=containers)
    except NriRdmaError as error:
        return replace(told, notes=notes, refusal=error)
    notes += tuple(_word_notes(pod, request, facts)) if request is not None else ()
    notes += tuple(map(sentence, shared_addresses(pod, request)))
    notes += tuple(_remark_notes(pod, request, facts))
    request = PodRequest(requests=(*(request.requests if request is not None else ()), *shares))
    request = _counted_by_manifest(pod, request, facts)
    awaiting = _awaiting_gpus(pod, request, facts)
    decision = decide(_question(pod, _relaxed(request, awaiting), facts), facts.taken)
    notes += tuple(_gpu_notes(pod, decision.request, facts, awaiting))
    refusal, plan = decision.refusal, Plan()
    if refusal is None:
        try:
            plan = _plan(decision.placed)
            _refuse_missing(facts.node, attached_requests(decision.placed, plan), pod)
        except NriRdmaError as error:
            refusal = error
    if refusal is not None or awaiting:
        return replace(
            told,
            notes=notes,
            requests=_requests(facts, decision.admitted, ()),
            refusal=refusal,
            undetermined=refusal is None,
            awaits_cpus=refusal is None and _awaits_cpus(pod, decision.admitted),
        )
    notes += (*_limit_notes(facts, decision.placed), *_route_notes(decision.placed, facts.lifelines))
    return replace(
        told,
        notes=notes,
        requests=_requests(facts, decision.admitted, decision.placed),
        netdevs=_netdevs(plan.moves, facts),
        containers=tuple(_container(item, decision.placed, plan, facts) for item in pod.containers),
    )


def _refuse_more_than_there_are(pod: PodManifest, facts: Facts) -> None:
    """Raise PlacementError if the pod asks for more of a pool's resource than the whole node has. Such a pod stays
    pending. An init container that ends has the same units as the containers after it."""
    for pool in facts.policy.pools.values():
        asking = [
            (it, _whole(number)) for it in pod.containers for name, number in it.resources if name == pool.resource
        ]
        if not asking:
            continue
        at_first = max((number for it, number in asking if it.ends_first), default=0)
        asked = max(at_first, sum(number for it, number in asking if not it.ends_first))
        is_of_devices = pool.gives is ShareGives.DEVICE
        there = len(offer(facts.policy, facts.node).by_pool[pool.name]) if is_of_devices else pool.shares
        if asked > there:
            what = f"asked more {pool.resource} than the {there} that the node has, so that no scheduler chooses it"
            where = f"{pool.resource} of {listed(it.name for it, _ in asking)}"
            raise PlacementError(ErrorCode.DEVICES_EXHAUSTED, what, where=where, hint=f"ask for at most {there}")


def _shares(pod: PodManifest, facts: Facts) -> tuple[DeviceRequest, ...]:
    """Return the requests that follow from the extended resources in the pod's manifest.

    A unit of a pool's resource is either a share, whose device is chosen later, or a device with its own id. The
    kubelet would choose the units. Here shares get made-up ids, and of devices those are chosen that nri-rdma would
    prefer.
    """
    pools = {name: pool for name, pool in facts.policy.pools.items() if pool.resource}
    by_resource = {pool.resource: pool for pool in pools.values() if pool.gives is ShareGives.DEVICE}
    numbers, used = numbered(), set[str]()
    spare: dict[str, tuple[str, ...]] = {}  # by resource, of ended init containers: the kubelet allocates these again
    containers = []
    for container in pod.containers:
        own = []
        for name, number in container.resources:
            ids = spare.get(name, ())[: _whole(number)]
            if name in by_resource:
                ids += _device_ids(by_resource[name], _whole(number) - len(ids), used, facts)
            ids += tuple(f"#{next(numbers)}" for _ in range(_whole(number) - len(ids)))
            used.update(ids)
            before = spare.get(name, ())
            spare[name] = tuple(dict.fromkeys((*before, *ids))) if container.ends_first else before[len(ids) :]
            own.append(DeviceIds(resource=name, ids=ids))
        containers.append(ContainerAllocation(name=container.name, resources=tuple(it for it in own if it.ids)))
    return share_requests(pools, PodAllocation(containers=tuple(containers)))


def _device_ids(pool: Pool, count: int, used: Collection[str], facts: Facts) -> tuple[str, ...]:
    """Return the ids of `count` devices of a pool, without those in `used`. Free devices come first; if they are too
    few, others follow, so that the refusal names them.

    The kubelet's Topology Manager may choose other devices.
    """
    offered, taken = offer(facts.policy, facts.node), facts.taken
    devices: dict[str, RdmaDevice] = {it.id: it for it in offered.by_pool[pool.name] if it.id not in used}
    told = offered_devices(pool, facts.node, offered, taken)
    free = [it.id for it in told if it.is_healthy and it.id in devices and not taken.get(it.id)]
    chosen = preferred(devices, free, (), min(count, len(free)))
    return (*chosen, *(it for it in devices if it not in chosen))[:count]


def _whole(number: str) -> int:
    """Return the quantity of an extended resource; 0 if it is not a whole number, as Kubernetes requires. The result is
    at most MAX_SHARES."""
    digits = number[:MAX_DIGITS]  # Python refuses to convert thousands of digits
    return min(int(digits), MAX_SHARES) if number.isdecimal() and number.isascii() else 0


def _question(pod: PodManifest, request: PodRequest, facts: Facts) -> Question:
    """Return the question that the daemon would decide for this pod. Facts that the kubelet would report are taken from
    the manifest and the flags."""
    return Question(
        owner=str(pod),
        asker=pod.asker,
        request=request,
        allocation=_allocation(pod, facts),
        gpus=PodGpus(by_container=facts.gpus) if facts.gpus else None,
        grants=facts.grants,
        adoption=facts.adoption,
        node=facts.node,
        policy=facts.policy,
        offer=offer(facts.policy, facts.node),
        memlock=MemlockBounds(ceiling=facts.memlock_ceiling, dropped_by=facts.memlock_dropped_by),
    )


def _own_grants(pod: PodManifest, grants: tuple[CdiGrant, ...]) -> tuple[CdiGrant, ...]:
    """Return the CDI devices of this pod's containers. The flags may name containers of several pods in a manifest."""
    names = {container.name for container in pod.containers}
    return tuple(grant for grant in grants if grant.container in names)


def _own_gpus(pod: PodManifest, facts: Facts) -> Mapping[str, KnownGpus]:
    """Return the GPUs of this pod's containers, in the pod's order of containers. A MIG device that no flag names is
    unknown, as on the node: the UUID that the kubelet reports names no GPU."""
    own: dict[str, KnownGpus] = {}
    for container in pod.containers:
        parts = [name for name, number in container.resources if is_mig_resource(name) and _whole(number)]
        if container.name in facts.gpus:
            own[container.name] = facts.gpus[container.name]
        elif parts and facts.gpus_are_reported and not container.ends_first:
            problem = f"{parts[0]} of container {container.name} is a part of a GPU, and its UUID does not say of which"
            own[container.name] = KnownGpus(problem=problem)
    return own


def _awaiting_gpus(pod: PodManifest, request: PodRequest, facts: Facts) -> frozenset[str]:
    """Return the names of the requests that insist on near GPUs or CPUs (`strict`), or count the GPUs of claims
    (`perGPU`), if only the kubelet knows which GPUs or CPUs these are, and no flag names them."""
    if not facts.gpus_are_reported:
        return frozenset()

    def waits(item: DeviceRequest, container: ContainerManifest) -> bool:
        if _is_uncounted(item) and container.claims and not container.ends_first:
            return item.scope.covers(container.name)
        has_some = _may_have_gpus(container) or (is_near_numa(item) and container.has_whole_cpus)
        return _is_strict(item) and has_some and item.scope.covers(container.name)

    return frozenset(
        item.name
        for item in request.requests
        if (_is_strict(item) or _is_uncounted(item))
        and not item.gpus
        and not any(item.scope.covers(name) for name in facts.gpus)
        if any(waits(item, container) for container in pod.containers)
    )


def _counted_by_manifest(pod: PodManifest, request: PodRequest, facts: Facts) -> PodRequest:
    """Return the request with a fixed number of devices wherever it asks for a number per GPU (`perGPU`). The number of
    GPUs is taken from the manifest."""
    return PodRequest(requests=tuple(_for_gpus_of(pod, item, facts) for item in request.requests))


def _for_gpus_of(pod: PodManifest, item: DeviceRequest, facts: Facts) -> DeviceRequest:
    unknown = any(known.problem and item.scope.covers(name) for name, known in facts.gpus.items())
    if item.per_gpu is None or item.gpus or unknown or not facts.gpus_are_reported:
        return item
    covered = (it for it in pod.containers if item.scope.covers(it.name))
    gpus = sum(
        _whole(number)
        for it in covered
        if not it.ends_first  # the kubelet gives its GPUs again, and never reports it
        for name, number in it.resources
        if is_gpu_resource(name)
    )
    return replace(item, count=item.per_gpu * gpus or None)


def _is_uncounted(request: DeviceRequest) -> bool:
    """Return whether the request has `perGPU`, and the manifest does not say how many GPUs that are."""
    return request.per_gpu is not None and request.count is None


def _is_strict(request: DeviceRequest) -> bool:
    """Return whether the request refuses a device that is far from its GPUs or CPUs."""
    return request.align is not None and request.align.strict and may_use_gpus(request)


def _may_have_gpus(container: ContainerManifest) -> bool:
    return bool(container.claims) or any(is_gpu_resource(name) for name, _ in container.resources)


def _awaits_cpus(pod: PodManifest, admitted: tuple[Admitted, ...]) -> bool:
    scopes = [item.request.scope for item in admitted if is_near_numa(item.request)]
    covered = [[it for it in pod.containers if scope.covers(it.name)] for scope in scopes]
    return any(any(it.has_whole_cpus for it in own) and not any(map(_may_have_gpus, own)) for own in covered)


def _relaxed(request: PodRequest, names: frozenset[str]) -> PodRequest:
    """Return the request in which the items with these names no longer insist on near GPUs (`strict`), and have the
    devices for one GPU if they count GPUs (`perGPU`).

    The GPUs of these items are not known. If even the relaxed request is refused, the pod is refused whichever GPUs it
    gets.
    """

    def relaxed(item: DeviceRequest) -> DeviceRequest:
        align = replace(item.align, strict=False) if item.align else None
        return replace(item, align=align, count=item.per_gpu if _is_uncounted(item) else item.count)

    return PodRequest(requests=tuple(relaxed(it) if it.name in names else it for it in request.requests))


def _spelling_notes(pod: PodManifest, prefix: str) -> Iterator[str]:
    """Yield a sentence for each annotation whose key has a typo of our prefix, and a sentence if the pod has an
    annotation of Multus."""
    for key in pod.annotations:
        meant = meant_key(key, prefix)
        if meant is not None:
            yield f"Nothing reads {bounded(key)}. Write {bounded(meant)}."
        if key == MULTUS_NETWORKS:
            yield f"The annotation {key} is Multus's: nri-rdma reads nothing of it, and shows none of its networks."


def _remark_notes(pod: PodManifest, request: PodRequest | None, facts: Facts) -> Iterator[str]:
    """Yield the warnings about the pod's manifest. Warnings about privileged containers are left out, because they are
    printed with the container."""
    for remark in remarks(pod, request, facts.annotation_prefix):
        if remark.path[-1:] != ("privileged",):
            yield sentence(remark.error)


def _gpu_notes(pod: PodManifest, request: PodRequest, facts: Facts, awaiting: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each container whose GPUs or CPUs matter for a request, but are not known from the
    manifest."""
    for container in pod.containers:
        asking = [it for it in request.requests if may_use_gpus(it) and it.scope.covers(container.name)]
        if not asking or container.name in facts.gpus:
            continue
        for name, count in container.resources:
            if is_gpu_resource(name):
                chosen = "The kubelet chooses the GPUs and reports them to the daemon"
                here = f"here --gpu {container.name}=ID[,ID] names them, and without it the devices are a guess"
                yield f"Container {container.name} gets {name}: {count}. {chosen}; {here}."
        if container.has_whole_cpus and any(it.name in awaiting and is_near_numa(it) for it in asking):
            needs = "that needs its CPU manager's policy static and a pod of the class Guaranteed, else it is refused"
            yield f"The kubelet chooses the CPUs of container {container.name} and reports them to the daemon; {needs}."
        for name in container.claims if any(it.name in awaiting for it in asking) else ():
            here = f"here --gpu {container.name}=ID[,ID] names them"
            yield f"Claim {name} of container {container.name} does not say which GPUs it has: {here}."


def _limit_notes(facts: Facts, placed: tuple[Placed, ...]) -> Iterator[str]:
    """Yield a sentence for each pool whose shares the pod gets: the rdma cgroup limits of one share, and the reason for
    them. A share is a unit of the pool's extended resource."""
    offered, told = offer(facts.policy, facts.node), dict[str, list[str]]()
    for item in placed:
        if not item.admitted.request.shares:
            continue
        pool = facts.policy.pools[item.admitted.request.pool]
        for device in item.devices if pool.shares else ():
            words = f"A share of pool {pool.name}: {share_limits(facts.node, offered, pool, device).words}"
            told.setdefault(words, []).append(device.name)
    for words, devices in told.items():
        yield f"{words}, on {listed(dict.fromkeys(devices))}."


def _route_notes(placed: tuple[Placed, ...], lifelines: Lifelines) -> Iterator[str]:
    """Yield a sentence for each requested route that would lead the pod's traffic inside the cluster over the moved
    netdev. Only the addresses in `lifelines` are known to belong to the cluster."""
    for item in placed:
        request = item.admitted.request
        routes = request.routes if request.interface.vrf is None else ()
        for told in leading_away(routes, Routing(), lifelines, has_rules=bool(request.rules)):
            yield f"{told[:1].upper()}{told[1:]}: as asked, the pod reaches that over the netdev ({request.where})."


def _netdevs(moves: tuple[NetdevMove, ...], facts: Facts) -> tuple[ExplainedNetdev, ...]:
    """Return the netdevs that move. For a netdev that is on the host now, the result says which configuration stays
    there."""
    carried, rules = (facts.host.carried, facts.host.rules) if facts.host is not None else ({}, ())
    known = tuple(replace(it, link=carried[it.link.ifindex]) for it in moves if it.link.ifindex in carried)
    decided = with_inherited(known, rules, Routing(), facts.lifelines)
    left_out = {it.link.ifindex: it.inherited.left_out for it in decided}
    return tuple(
        ExplainedNetdev(
            device=move.device,
            host_name=move.link.name,
            mac=move.link.mac,
            pod_name=move.pod_name,
            mtu=move.mtu or move.link.mtu,
            addresses=tuple(map(str, move.addresses)),
            takes=move.takes.words,
            left_out=left_out.get(move.link.ifindex),
        )
        for move in moves
    )


def _word_notes(pod: PodManifest, request: PodRequest, facts: Facts) -> Iterator[str]:
    """Yield a sentence for each request that is written as one word (a number or a pool's name), if its containers
    depend on the node: on a node with other settings, other containers of the pod would get the devices."""
    allocated = _allocated(pod, facts).named
    for item in request.requests:
        covered = [container.name for container in pod.containers if item.scope.covers(container.name)]
        some = [name for name in covered if name in allocated]
        if not item.word or not some or some == covered:
            continue
        only = f"for {listed(some)} only, the containers to which the kubelet gives devices"
        everyone = "for every container"
        here, elsewhere = f"it is {everyone}", f"where the daemon asks the kubelet, it is {only}"
        if _allocation(pod, facts) is not None:
            here, elsewhere = f"it is {only}", f"where the daemon does not ask the kubelet, it is {everyone}"
        what = f"count: {item.count}" if item.pool == DEFAULT_POOL else f"pool: {item.pool}"
        same = f"{{{what}, containers: [{listed(some)}]}} is the same everywhere"
        yield f"Request {item.name} is one word: here {here}; {elsewhere}. {same}."


def _allocation(pod: PodManifest, facts: Facts) -> PodAllocation | None:
    """Return what the kubelet would report for the pod; None if the kubelet does not report to the daemon."""
    return _allocated(pod, facts) if facts.kubelet_tells or facts.gpus else None


def _allocated(pod: PodManifest, facts: Facts) -> PodAllocation:
    """Return what the kubelet would report of the pod: resources of device plugins, and claims. It does not report init
    containers that end."""
    return PodAllocation(
        containers=tuple(
            ContainerAllocation(
                name=container.name,
                resources=tuple(DeviceIds(resource=name, ids=()) for name in _resources(container, facts)),
                claims=tuple(
                    ClaimDevice(namespace=pod.namespace, claim=name, driver="", pool="", device="", cdi_devices=())
                    for name in container.claims
                ),
            )
            for container in pod.containers
            if not container.ends_first
        )
    )


def _resources(container: ContainerManifest, facts: Facts) -> Iterator[str]:
    """Yield the resources that device plugins give the container. Also yield "GPUs" if the flag --gpu names GPUs for
    this container."""
    counted = _counted(container, facts)
    yield from (name for name, _ in container.resources if name not in counted)
    if container.name in facts.gpus:
        yield "GPUs"


def _counted(container: ContainerManifest, facts: Facts) -> frozenset[str]:
    """Return the container's resources whose names begin with nri-rdma's domain. Administrators advertise them for the
    scheduler; no device plugin serves them."""
    domain = facts.annotation_prefix.partition("/")[0]
    return frozenset(name for name, _ in container.resources if name.startswith(f"{domain}/"))


def refuse_unknown_containers(pod: PodManifest, request: PodRequest | None, prefix: str) -> None:
    """Raise RequestError if the request names a container that the pod does not have."""
    for refusal in unknown_containers(pod, request, prefix):
        raise refusal


def _holds(pod: PodManifest, holders: frozenset[Holding]) -> bool:
    return any(holding.owner == str(pod) for holding in holders)


def _given_back(facts: Facts, owner: str) -> Facts:
    taken = {key: frozenset(holding for holding in held if holding.owner != owner) for key, held in facts.taken.items()}
    home = [item for item in facts.away if item.owner == owner]
    devices = tuple(
        replace(
            device,
            netdevs=(*device.netdevs, *(item.netdev for item in home if item.device == device.name)),
            used_by_some=device.used_by_some if taken.get(device.id) == facts.taken.get(device.id) else (),
        )
        for device in facts.node.devices
    )
    return replace(facts, taken=taken, node=replace(facts.node, devices=devices))


def _refuse_missing(node: Node, attached: tuple[AttachedRequest, ...], pod: PodManifest) -> None:
    """Raise NriRdmaError if a requested device node does not exist, as the daemon does at the end of an attach."""
    has_nodes = any(device.char_devices for device in node.devices)
    now = Resolved(devices=node.devices, rdma_cm=node.rdma_cm, has_nodes=has_nodes)
    for request in attached:
        refuse_missing(request, now, str(pod))


def _plan(placed: tuple[Placed, ...]) -> Plan:
    captured = {
        netdev.ifindex: _link(netdev) for item in placed for device in item.devices for netdev in device.netdevs
    }
    return plan_attach(placed, captured, POD_LINKS)


def _link(netdev: Netdev) -> LinkState:
    """Return the netdev as a LinkState. Fields that are needed only to return a netdev to the host are empty."""
    return LinkState(
        ifindex=netdev.ifindex,
        name=netdev.name,
        kind="",
        parent="",
        permanent_mac="",
        mac=netdev.mac,
        mtu=netdev.mtu,
        txqlen=0,
        alias="",
        alt_names=(),
        up=netdev.up,
        max_mtu=netdev.max_mtu,
        unreturnable=netdev.unreturnable,
    )


POD_LINKS = tuple(
    _link(Netdev(name=name, ifindex=ifindex, mac="", mtu=1500, up=True))
    for ifindex, name in enumerate(("lo", "eth0"), 1)
)
"""The netdevs that every pod's namespace has already. Container runtimes name the interface of every CNI plugin
eth0."""


def _container(
    container: ContainerManifest, placed: tuple[Placed, ...], plan: Plan, facts: Facts
) -> ExplainedContainer:
    attached = attached_requests(placed, plan, USUAL_INTERFACE if facts.pods_have_networks else None)
    edits, everything = (
        inject(
            attached,
            facts.node.rdma_cm,
            container.name,
            env,
            facts.present.get(container.name, {}),
            facts.default_memlock,
        )
        for env in (container.env, frozenset[str]())
    )
    covering = [item for item in placed if item.admitted.request.scope.covers(container.name)]
    requests = [item.admitted.request for item in covering]
    counted, shares = _counted(container, facts), {it.resource for it in facts.policy.pools.values()}
    memlock = "unlimited" if edits.memlock == UNLIMITED else edits.memlock
    return ExplainedContainer(
        name=container.name,
        privileged=container.privileged,
        resources=dict(container.resources),
        claims=container.claims,
        gpus=tuple(map(str, facts.gpus[container.name].gpus)) if container.name in facts.gpus else (),
        requests=tuple(request.name for request in requests),
        char_devices=tuple(
            ExplainedNode(path=it.path, major=it.major, minor=it.minor, mode=f"{it.mode:04o}")
            for it in edits.char_devices
        ),
        env=dict(edits.env),
        memlock=memlock,
        unified={RDMA_MAX: "\n".join(edits.rdma_max)} if edits.rdma_max else {},
        kept_env=tuple(name for name, _ in everything.env if name in container.env),
        asks_memlock=any(request.memlock is not None for request in requests),
        chooses_gid=any(
            device.protocol is Protocol.ROCE
            for item in covering
            if item.admitted.request.use is not Use.STORAGE and CharKind.UVERBS in item.admitted.request.char_kinds
            for device in item.devices
        ),
        counted=tuple(name for name, _ in container.resources if name in counted),
        shares=tuple(name for name, _ in container.resources if name in shares),
    )


# Why this device and not that one


def _requests(facts: Facts, admitted: tuple[Admitted, ...], placed: tuple[Placed, ...]) -> tuple[ExplainedRequest, ...]:
    own = {item.admitted: item for item in placed}  # requests of one resource have one name
    return (
        *(_request(facts, it, (*_given(facts, own.get(it)), *_sources(facts, it, placed))) for it in admitted),
        *(_request(facts, it.admitted, (*_given(facts, it),)) for it in placed if it.admitted.request.cdi_device),
    )


def _request(facts: Facts, admitted: Admitted, candidates: tuple[Candidate, ...]) -> ExplainedRequest:
    request = admitted.request
    return ExplainedRequest(
        name=request.name,
        where=request.where,
        count=request.count_words,
        pool="" if request.cdi_device else request.pool,
        cdi_device=request.cdi_device,
        mode=admitted.mode,
        isolation=isolation_of(facts.node.rdma_netns, admitted.mode) or "",
        prove=bool(request.prove),
        gpus=tuple(map(str, request.gpus)),
        gpus_from=request.gpus_from,
        gpus_problem=request.gpus_problem,
        devices=tuple(it.device for it in candidates if it.given),
        candidates=candidates,
    )


def _given(facts: Facts, placed: Placed | None) -> Iterator[Candidate]:
    if placed is None:
        return
    request = placed.admitted.request
    serves = placed.serves or (None,) * len(placed.devices)
    for device, reason, gpu in zip(placed.devices, placed.reasons, serves, strict=True):
        near = _nearest(facts, request, device, gpu)
        why = reason.removeprefix(f"{device.name}: ")
        if request.cdi_device and near.distance is not None:
            why = f"{why}; {Distance[near.distance].words}, from GPU {near.gpu}"
        yield replace(near, given=True, why=why)


def _nearest(facts: Facts, request: DeviceRequest, device: RdmaDevice, gpu: PciAddress | None = None) -> Candidate:
    """Return the device as a free candidate for the request. The candidate has `gpu` and the distance to it; if `gpu`
    is None, the nearest of the request's GPUs."""
    own = {gpu} if gpu is not None else set(request.gpus)
    found = [(distance(device, it), it.pci) for it in facts.node.gpus if it.pci in own]
    far, nearest = min(found, default=(None, None))
    return Candidate(
        device=device.name,
        pci=str(device.pci) if device.pci is not None else None,
        numa_node=device.numa_node,
        state=device.port_state,
        given=False,
        free=True,
        why="",
        gpu=str(nearest) if nearest is not None else None,
        distance=far.name if far is not None else None,
    )


def _sources(facts: Facts, admitted: Admitted, placed: tuple[Placed, ...]) -> Iterator[Candidate]:
    """Yield the devices that the request does not get as candidates, each with the reason."""
    offered = offer(facts.policy, facts.node)
    given = [(device.id, item.admitted.request) for item in placed for device in item.devices]
    for device in facts.node.devices:
        to = [request for device_id, request in given if device_id == device.id]
        if not to:
            why_not = _why_not(facts, offered, admitted, device)
            why = why_not or _why_later(facts.node, admitted, device)
            yield replace(_nearest(facts, admitted.request, device), free=not why_not, why=why)
        elif all(request.where != admitted.request.where for request in to):
            other = to[0]
            place = f" ({other.where})" if other.name == admitted.request.name else ""
            why = f"given to request {other.name}{place} of this pod"
            yield replace(_nearest(facts, admitted.request, device), free=False, why=why)


def _why_not(facts: Facts, offered: Offer, admitted: Admitted, device: RdmaDevice) -> str:
    """Return why the request cannot have the device; "" if it could have it. The reason is found by placing the request
    on this device alone."""
    request = admitted.request
    failed = mismatch(request.match, device)
    if failed:
        return failed
    anywhere = Align(to=AlignTo.NONE, strict=request.align is not None and request.align.strict)
    match = replace(request.match, device=device.name)
    only = replace(request, match=match, count=1, if_free=False, align=anywhere, gpus=())
    try:
        place(facts.node, offered, facts.taken, (replace(admitted, request=only),))
    except PlacementError as error:
        if error.code is ErrorCode.NOT_IN_POOL:
            return error.detail.removeprefix(f"{device.name} is ")
        return error.what.removeprefix(f"{device.name} is ")
    return ""


def _why_later(node: Node, admitted: Admitted, device: RdmaDevice) -> str:
    gpus = [gpu for gpu in node.gpus if gpu.pci in admitted.request.gpus]
    words = ["free", down_words(device, admitted.mode)]
    if gpus:
        nearest = min(gpus, key=lambda gpu: distance(device, gpu))
        words.append(f"from GPU {nearest.pci} it is {distance(device, nearest).words}")
    return "; ".join(filter(None, words))
