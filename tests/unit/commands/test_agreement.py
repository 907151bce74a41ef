"""`explain` and the daemon are of one opinion: about a thousand pods of chance, on three nodes whose host uses devices,
and whose kubelet tells which GPUs it gave.

The one is asked for a manifest, the other by a runtime's calls (tests/unit/rigs/nri_calls.py). Both refuse with the
same words, or every container gets the same. NRI_RDMA_PODS=56 makes it a thousand; `-rP` shows how many were served,
and refused with which code.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest

from nri_rdma.commands.explain.explanation import explain
from nri_rdma.commands.explain.gather import gather
from nri_rdma.commands.explain.with_gpus import FLAG, with_gpus
from nri_rdma.config.settings import Document, load
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.gpus import KUBELET
from nri_rdma.decide.policy import Asker, policy_of
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.nldev import ObjectKind, RdmaObject
from nri_rdma.model.usage import HostSocket, Lifelines
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.fakes.kernel import Address, Link, Rdma, Route
from tests.rig.node import load as load_node
from tests.rig.systree import build_tree
from tests.unit.rigs.engine_with_kubelet import Kubelet
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import Handlers, of_explained

PREFIX = "rdma.noderesource.dev"
RUNS = 18
PODS = int(os.environ.get("NRI_RDMA_PODS", "12"))
"""Of one run; with 56 they are a thousand over all runs."""
CEILING = 64 << 20
"""Bytes of RLIMIT_MEMLOCK that the runtime may set."""

REQUESTS = (
    "count: 1",
    "count: 2",
    "count: all",
    "mode: shared",
    "mode: exclusive",
    "match: {numaNode: 1}",
    "match: {device: mlx5_3}",
    "match: {device: mlx5_0}",
    "match: {linkLayer: InfiniBand}",
    'gpus: ["0000:be:00.0"], align: {to: gpu, strict: true}',
    'count: 2, gpus: ["0000:18:00.0", "0000:f8:00.0"]',
    "align: {to: gpu, strict: true}",
    "align: gpu, count: 2",
    "containers: [b], align: {to: gpu, strict: true}",
    "align: numa, count: 2",
    "containers: [a]",
    "interface: {name: net1, mtu: 4200}",
    "interface: {name: eth0}",
    "devices: [umad]",
    "pool: gold",
    "pool: gold, match: {device: mlx5_2}",
    "pool: silver",
    "memlock: 65536",
    "memlock: unlimited",
    "limits: {hcaHandles: 3}",
    "count: 2, limits: {hcaObjects: 300}",
    "isolation: hard",
    "cuont: 1",
)
SERVED = (
    "count: 1",
    "mode: shared",
    "mode: exclusive",
    "containers: [a]",
    "align: numa",
    "memlock: 65536",
    "limits: {hcaHandles: 2}",
    "limits: {hcaHandles: 1, hcaObjects: 100}, count: 2",
    "match: {device: mlx5_1}",
    "match: {device: mlx5_2}, mode: shared",
)
POOLS = """
[pools.default]
select = { numaNode = 0 }
exclude = { device = "mlx5_0" }
modes = ["exclusive", "shared"]
maxLimits = { hcaHandles = 2 }
[pools.gold]
select = [{ numaNode = 1 }, { device = "mlx5_2" }]
modes = ["shared"]
[[rules]]
name = "no sandboxes"
runtimeHandlers = ["kata"]
allow = false
[[rules]]
pools = ["gold"]
podLabels = { team = "ml" }
devices = ["umad", "uverbs"]
[[rules]]
pools = ["default"]
interface = ["mtu"]
"""
SPLIT = """
[pools.default]
select = { pfName = "ens1f0#0-5" }
modes = ["exclusive", "shared"]
[pools.gold]
select = [{ rootDevice = "0000:41:00.0#5-7" }, { pfName = "ens1f0", device = "mlx5_0" }]
modes = ["shared", "exclusive"]
[pools.silver]
select = { vendor = "14e4", minSpeedGbps = 200 }
modes = ["exclusive"]
"""
INFINIBAND = """
[pools.default]
select = { protocol = "ib", pkey = 0x7fff, numaNode = 0 }
modes = ["exclusive"]
[pools.silver]
select = { device = "none" }
modes = ["exclusive"]
requireIsolation = true
[pools.gold]
select = { linkLayer = "InfiniBand", numaNode = 1 }
modes = ["exclusive"]
[[rules]]
podLabels = { team = "*" }
[[rules]]
namespaces = ["default"]
modes = ["exclusive"]
interface = []
"""
ASKERS = (
    Asker(namespace="default"),
    Asker(namespace="default", labels=(("team", "ml"),)),
    Asker(namespace="default", runtime_handler="kata"),
)


# What the host does with a rail for a while

Use = AbstractContextManager[None]


@contextmanager
def _set(thing: object, **values: object) -> Iterator[None]:
    before = {name: getattr(thing, name) for name in values}
    for name, value in values.items():
        setattr(thing, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


@contextmanager
def _child(inside: InsideDaemon, rail: Link) -> Iterator[None]:
    child = inside.world.add_link(inside.world.host, f"{rail.name}v", lower=rail.ifindex)
    try:
        yield
    finally:
        inside.world.host.links.pop(child.ifindex, None)  # the kernel removes it with its rail


@contextmanager
def _socket(inside: InsideDaemon, rail: Link) -> Iterator[None]:
    own = IPv4Address("10.0.0.5")
    item = HostSocket(protocol="tcp", address=own, port=4420)
    with _set(rail, addresses=[*rail.addresses, Address(interface=IPv4Interface((own, 24)))]):
        inside.world.sockets.append(item)
        try:
            yield
        finally:
            inside.world.sockets.remove(item)


@contextmanager
def _node_ip(inside: InsideDaemon, rail: Link) -> Iterator[None]:
    own = IPv4Address("10.0.0.6")
    with (
        _set(rail, addresses=[*rail.addresses, Address(interface=IPv4Interface((own, 24)))]),
        _set(inside.world, lifelines=Lifelines(node_ips=(own,))),
    ):
        yield


def _default_route(_inside: InsideDaemon, rail: Link) -> Use:
    return _set(rail, routes=[*rail.routes, Route(to=IPv4Interface("0.0.0.0/0").network)])


def _held_by(kernel_user: str, pid: int | None) -> Callable[[InsideDaemon, Link], Use]:
    kind = ObjectKind.CTX if pid is not None else ObjectKind.QP
    item = RdmaObject(kind=kind, kernel_user=kernel_user, pid=pid, process="opensm" if pid else "")

    def hold(inside: InsideDaemon, rail: Link) -> Use:
        return _set(_rdma_of(inside, rail), objects=(item,))

    return hold


def _rdma_of(inside: InsideDaemon, rail: Link) -> Rdma:
    return next(device for device in inside.world.rdma if device.netdev is rail)


USES: tuple[Callable[[InsideDaemon, Link], Use], ...] = (
    lambda _inside, rail: _set(rail, master=4711),
    lambda _inside, rail: _set(rail, xdp=True),
    _default_route,
    _child,
    _socket,
    _node_ip,
    _held_by("nvme_rdma", None),
    _held_by("", 4712),
)
"""Each makes the host use a rail within a `with`."""


@contextmanager
def _some_use(chance: random.Random, inside: InsideDaemon) -> Iterator[None]:
    """Half of the time the host uses up to half of the rails that it has."""
    rails = [device.netdev for device in inside.world.rdma if device.netdev in inside.world.host.links.values()]
    used = chance.sample(rails, chance.randint(1, max(1, len(rails) // 2))) if rails and chance.random() < 0.5 else []
    with ExitStack() as stack:
        for rail in used:
            assert rail is not None
            stack.enter_context(chance.choice(USES)(inside, rail))
        if used:
            inside.read_again()
        yield
    if used:
        inside.read_again()


# The pods


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sysfs trees of the nodes, for reading only."""
    work = tmp_path_factory.mktemp("trees")
    for name in ("eight", "vf8", "ib2"):
        build_tree(replace(load_node(name), rdma_netns_mode="shared"), work / name)
    return work


@pytest.fixture(scope="module")
def mix() -> Iterator[Counter[str]]:
    """What became of the pods of all runs. When all have run, it is a mix that shows something."""
    outcomes: Counter[str] = Counter()
    yield outcomes
    total = outcomes.total()
    print(f"{total} pods: {_told(outcomes)}")
    if total == RUNS * PODS:
        assert 0.2 < outcomes["given"] / total < 0.8
        assert outcomes["DEVICE-IN-USE"] > 0.01 * total
        assert len(outcomes) > 12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("node", "config"),
    [("eight", ""), ("eight", POOLS), ("vf8", ""), ("vf8", SPLIT), ("ib2", ""), ("ib2", INFINIBAND)],
    ids=lambda value: "pools" if "[" in value else value or "default",
)
def test_explain_and_the_daemon_agree(
    node: str, config: str, seed: int, tmp_path: Path, trees: Path, mix: Counter[str]
) -> None:
    chance = random.Random(f"{node}{config}{seed}")
    with InsideDaemon(tmp_path, trees / node, node) as inside:
        inside.add_rdma_devices()
        assert inside.world.rdma_netns is RdmaNetns.SHARED
        if seed or config:
            inside.make_cgroups()
        if config:
            settings = load({}, {}, Document(name="FILE", text=config)).settings
            inside.engine.offering.policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
        inside.engine.offering.memlock = MemlockBounds(ceiling=CEILING)
        inside.engine.kubelet.kubelet = kubelet = Kubelet()
        kubelet.others = PodAllocation()
        handlers = Handlers(inside)
        outcomes = Counter(_outcome(chance, handlers, kubelet, number) for number in range(PODS))
    print(f"{node}, {'pools' if config else 'default pool'}, seed {seed}: {_told(outcomes)}")
    mix.update(outcomes)
    assert outcomes["given"], outcomes
    assert len(outcomes) > 2, outcomes


def _told(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())


def _outcome(chance: random.Random, handlers: Handlers, kubelet: Kubelet, number: int) -> str:
    """What became of one pod of chance: the same to both, a refusal's code or `given`."""
    inside = handlers.inside
    running = inside.sandboxes.all()
    if running and (len(running) > 2 or chance.random() < 0.4):
        inside.stop_pod(chance.choice(running).pod)
    manifest = _manifest(chance, number)
    told = _give_gpus(random.Random(str(manifest.annotations)), inside, kubelet, manifest)
    with _some_use(chance, inside):
        explanation = explain(manifest, with_gpus(gather(inside.settings), told, (manifest,)).facts)
        try:
            pod = handlers.run_pod(manifest)
        except NriRdmaError as refusal:
            assert str(explanation.refusal).replace(FLAG, KUBELET) == str(refusal), manifest
            return refusal.code
    assert explanation.refusal is None, manifest
    got = {item.name: handlers.create(pod, item) for item in manifest.containers}
    assert {item.name: of_explained(item) for item in explanation.containers} == got, manifest
    return "given"


def _give_gpus(chance: random.Random, inside: InsideDaemon, kubelet: Kubelet, manifest: PodManifest) -> tuple[str, ...]:
    """Half of the time the kubelet gives GPUs of the node to one container or both; the same for `explain`."""
    free = [gpu.uuid for gpu in inside.node.gpus]
    if len(free) < 4 or chance.random() < 0.5:
        return ()
    ids = chance.sample(free, 4)
    given = {"a": ids[: chance.randint(1, 2)]} | ({"b": ids[2:]} if chance.random() < 0.5 else {})
    for container, own in given.items():
        kubelet.give_ids(str(manifest), container, "nvidia.com/gpu", *own)
    return tuple(f"{container}={','.join(own)}" for container, own in given.items())


def _manifest(chance: random.Random, number: int) -> PodManifest:
    asker = chance.choice(ASKERS)
    annotations = {chance.choice((PREFIX, f"{PREFIX}/pod")): _requests(chance)}
    if chance.random() < 0.2:
        annotations[f"{PREFIX}/container.b"] = chance.choice((_requests(chance), "", "1"))
    own_env = (frozenset[str](), frozenset({"NCCL_IB_HCA", "PATH"}), frozenset({"UCX_NET_DEVICES"}))
    return PodManifest(
        kind="Pod",
        namespace="default",
        name=f"pod-{number}",
        labels=asker.labels,
        runtime_class=asker.runtime_handler,
        annotations=annotations,
        containers=tuple(ContainerManifest(name=name, env=chance.choice(own_env)) for name in ("a", "b")),
        host_network=chance.random() < 0.1,
    )


def _requests(chance: random.Random) -> str:
    """One or two; most are such as are served where devices are free."""
    kinds = SERVED if chance.random() < 0.6 else REQUESTS
    return f"[{', '.join(f'{{{item}}}' for item in chance.sample(kinds, chance.choice((1, 1, 2))))}]"
