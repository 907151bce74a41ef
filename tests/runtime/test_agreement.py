"""`explain` and a real containerd agree about pods made by a seed: each has what `explain -o json` said, or is refused
with the same words.

What a container has is asked inside it: `stat` of its device nodes, its netdevs by `ip`. NRI_RDMA_SEED repeats a run,
NRI_RDMA_PODS makes more pods.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.model.edits import ENV_PREFIXES, OWN_VARIABLES
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import Seen, look
from tests.rig.fabric import Fabric
from tests.rig.node import Node
from tests.unit.commands.cli.program import nri_rdma

pytestmark = [pytest.mark.root, pytest.mark.runtime]

PREFIX = "rdma.noderesource.dev"
PODS = int(os.environ.get("NRI_RDMA_PODS", "50"))
OF_GIDS = (
    *("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_GID_INDEX"),
    "UCX_IB_GID_INDEX",
)
"""Variables that nobody can tell before a pod has its devices; test_variables.py is about them."""
SEED = int(os.environ.get("NRI_RDMA_SEED") or random.SystemRandom().randrange(1 << 32))
AT_ONCE = 3
"""Pods that hold devices while another one asks."""
POD_LINKS = {"lo", "eth0"}
POOLS = """
[pools.default]
select = { numaNode = 0 }
exclude = { device = "mlx5_0" }
modes = ["exclusive", "shared"]
[pools.gold]
select = [{ numaNode = 1 }, { device = "mlx5_2" }]
modes = ["shared"]
[[rules]]
pools = ["gold"]
podLabels = { team = "ml" }
[[rules]]
pools = ["default"]
interface = ["mtu"]
"""
SERVED = (
    "count: 1",
    "count: 2",
    "mode: shared",
    "mode: exclusive",
    "containers: [a]",
    "containers: [b]",
    "align: numa, count: 2",
    "memlock: 65536",
    "match: {device: mlx5_1}",
    "match: {device: mlx5_2}, mode: shared",
    "pool: gold",
    "mode: exclusive, interface: {mtu: 4200}",
    "mode: exclusive, interface: {addresses: [192.0.2.77/24]}",
)
OTHERS = (
    "count: all",
    "match: {numaNode: 1}",
    "match: {device: mlx5_0}",
    "match: {linkLayer: InfiniBand}",
    'gpus: ["0000:be:00.0"], align: {to: gpu, strict: true}',
    'count: 2, gpus: ["0000:18:00.0", "0000:f8:00.0"]',
    "interface: {name: net1, mtu: 4200}",
    "interface: {name: eth0}",
    "devices: [umad]",
    "pool: silver",
    "memlock: unlimited",
    "isolation: hard",
    "cuont: 1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A pod of chance."""

    name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What its containers set themselves, by container."""

    def manifest(self) -> dict[str, Any]:
        """As its author writes it."""
        containers = [
            {"name": name, "env": [{"name": key, "value": value} for key, value in own.items()]}
            for name, own in self.env.items()
        ]
        metadata = {"name": self.name, "annotations": dict(self.annotations), "labels": dict(self.labels)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def make(chance: random.Random, number: int) -> Made:
    annotations = {chance.choice((PREFIX, f"{PREFIX}/pod")): requests(chance)}
    if chance.random() < 0.2:
        annotations[f"{PREFIX}/container.b"] = chance.choice((requests(chance), "", "1"))
    return Made(
        name=f"pod-{number}",
        annotations=annotations,
        labels=chance.choice(({}, {"team": "ml"})),
        env={name: chance.choice(({}, {}, {chance.choice(OWN_VARIABLES): "own"})) for name in ("a", "b")},
    )


def requests(chance: random.Random) -> str:
    """One or two; most are such as are served where devices are free."""
    kinds = SERVED if chance.random() < 0.7 else OTHERS
    return f"[{', '.join(f'{{{item}}}' for item in chance.sample(kinds, chance.choice((1, 1, 2))))}]"


@pytest.fixture(params=["", POOLS], ids=["one-pool", "pools"])
def daemon(request: pytest.FixtureRequest, containerd: Containerd, node: Fabric, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on the node "eight", with one pool or with pools and rules."""
    config = tmp_path / "config.toml"
    config.write_text(request.param)
    pools = ("--config", str(config)) if request.param else EXCLUSIVE_FIRST
    with Daemon(containerd, node, extra=(*pools, "--name-holders")) as running:  # the names that explain has, for root
        yield running


def test_a_pod_has_what_explain_said_or_is_refused_with_its_words(
    host_equal: None, node: Fabric, daemon: Daemon, cri: Cri, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    print(f"NRI_RDMA_SEED={SEED}")
    chance = random.Random(f"{SEED} {request.node.name}")
    running: list[Sandbox] = []
    outcomes: Counter[str] = Counter()
    for number in range(PODS // 2):
        if len(running) == AT_ONCE or (running and chance.random() < 0.6):
            cri.delete_pod(running.pop(chance.randrange(len(running))))
            ids = {it.id for it in running}
            wait_until(lambda: {it["id"] for it in daemon.status()["sandboxes"]} == ids, "the devices to be back")  # noqa: B023
        made = make(chance, number)
        told = explain(made, node, daemon, tmp_path / "pod.yaml")
        try:
            pod = cri.run_pod(made.name, annotations=made.annotations, labels=made.labels)
        except CriError as error:
            assert told["refusal"] is not None, f"{made}: {error}"
            assert told["refusal"]["text"] in error.text, made
            outcomes[told["refusal"]["code"]] += 1
            continue
        running.append(pod)
        assert told["refusal"] is None, made
        assert not told["undetermined"], made
        for container in told["containers"]:
            own = made.env[container["name"]]
            seen = look(cri, cri.run_container(pod, container["name"], env=own))
            assert found(seen) == expected(container, told["netdevs"], own, node.node), made
            if container["memlock"] is not None:
                assert seen.memlock_kib == str(container["memlock"] // 1024), made
        outcomes["given"] += 1
    for pod in running:
        cri.delete_pod(pod)
    print(f"{outcomes.total()} pods: {dict(outcomes)}")
    assert outcomes["given"] > PODS // 25, "too few to say something"
    assert len(outcomes) > 2


def explain(made: Made, node: Fabric, daemon: Daemon, path: Path) -> dict[str, Any]:
    """What it says of a pod while this daemon has what it has."""
    path.write_text(json.dumps(made.manifest()))
    hardware = ("--sysfs-root", node.sysfs, "--dev-root", node.dev, "--proc-root", node.proc)
    done = nri_rdma("explain", path, "-o", "json", "--state-dir", daemon.state_dir, *hardware)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert "the daemon does not answer" not in str(document["source"])
    told: dict[str, Any] = document["pods"][0]
    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """What a container has of RDMA devices."""

    nodes: Mapping[str, tuple[str, str]]
    """Number and mode, by name."""
    netdevs: Mapping[str, tuple[str, int, frozenset[str]]]
    """MAC, MTU and IPv4 addresses, by name."""
    env: Mapping[str, str]


def expected(container: Mapping[str, Any], netdevs: list[dict[str, Any]], own: Mapping[str, str], node: Node) -> Got:
    """What `explain` said."""
    return Got(
        nodes={
            it["path"].removeprefix("/dev/infiniband/"): (f"{it['major']}:{it['minor']}", it["mode"].lstrip("0"))
            for it in container["char_devices"]
        },
        netdevs={it["pod_name"]: (it["mac"], it["mtu"], _addresses(it, node)) for it in netdevs},
        env={**container["env"], **own},
    )


def _addresses(netdev: Mapping[str, Any], node: Node) -> frozenset[str]:
    """The IPv4 addresses: those that the request names, or those that the host has given to the netdev."""
    if "addresses" not in netdev["takes"]:
        return frozenset(netdev["addresses"])
    described = (it.split()[0] for it in node.netdev(netdev["host_name"]).addresses)
    return frozenset(it for it in described if ":" not in it)


def found(seen: Seen) -> Got:
    """What the container has in fact."""
    return Got(
        nodes={name: (number, seen.modes[name]) for name, number in seen.nodes.items()},
        netdevs={
            name: (mac, seen.mtus[name], frozenset(it for it in seen.addresses.get(name, ()) if ":" not in it))
            for name, mac in seen.macs.items()
            if name not in POD_LINKS
        },
        env={key: value for key, value in seen.env.items() if key.startswith(ENV_PREFIXES) and key not in OF_GIDS},
    )
