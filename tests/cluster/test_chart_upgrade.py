"""`helm upgrade` and `helm rollback` under 50 pods: none restarts or loses a device, and of those that start meanwhile
none runs bare if the guard's policy is there. Without it, how many do is counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import old_image
from tests.cluster.cluster import Cluster
from tests.cluster.helm import IMAGE_ARCHIVE, Helm
from tests.cluster.pods import execute, pod
from tests.cluster.test_claims import claim_spec, claiming, make, template
from tests.rig.deadline import wait_until

IMAGES = [IMAGE_ARCHIVE, *old_image.ARCHIVES.values()]
KUBELET = {"maxPods": 250}
KEY = "rdma.noderesource.dev/pod"
SHARE = "rdma/rdma_shared_device_a"
GUARD = "rdma.noderesource.dev/guard"
POOLS = {
    "rails": {"select": {"device": ["mlx5_0", "mlx5_1", "mlx5_2"]}, "modes": ["exclusive", "shared"]},
    "hcas-a": {
        "select": {"device": ["mlx5_3", "mlx5_4"]},
        "modes": ["shared"],
        "door": "resource",
        "resource": SHARE,
        "shares": 32,
    },
    "nics": {"select": {"device": ["mlx5_5", "mlx5_6", "mlx5_7"]}, "modes": ["exclusive"], "door": "claims"},
}
EXCLUSIVE = "[{pool: rails, mode: exclusive, interface: {name: fab0}}]"
SHARED = "[{pool: rails, mode: shared}]"
BURST = 64
LONG_S = 600.0
"""The nodes of these tests copy an image's files for each container, beside whatever else this machine does."""

pytestmark = pytest.mark.timeout(1800)


def values(image: str, guard: str) -> Mapping[str, Any]:
    """Values for today's image ("new"), or an older one."""
    tag = {} if image == "new" else {"tag": image}
    return {
        "image": {"repository": "localhost/nri-rdma", "pullPolicy": "Never", **tag},
        "guard": guard,
        "config": {"pools": POOLS},
    }


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    """helm for that cluster."""
    make(cluster, template("nic", claim_spec({"nic": {}})))
    return Helm(cluster)


def create(cluster: Cluster, *asked: Mapping[str, Any]) -> None:
    """Create pods at once."""
    cluster.kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": list(asked)})


def fifty() -> list[dict[str, Any]]:
    """Pods with each kind of request."""
    share = [{"resources": {"limits": {SHARE: 1}}}]
    return [
        pod("alone", annotations={KEY: EXCLUSIVE}),
        *(claiming(f"claim-{number}", {"rdma": "nic"}) for number in range(3)),
        *(pod(f"share-{number}", containers=share) for number in range(20)),
        *(pod(f"shared-{number}", annotations={KEY: SHARED}) for number in range(20)),
        *(pod(f"plain-{number}") for number in range(6)),
    ]


def lives(cluster: Cluster) -> dict[str, tuple[str, int, bool]]:
    """The uid, restarts and whether all containers run, of each pod."""
    found = {}
    for it in cluster.get("pods")["items"]:
        states = it["status"].get("containerStatuses", [])
        runs = bool(states) and all("running" in state["state"] for state in states)
        found[it["metadata"]["name"]] = (it["metadata"]["uid"], sum(state["restartCount"] for state in states), runs)
    return found


def wait_for(cluster: Cluster, is_so: Callable[[dict[str, tuple[str, int, bool]]], bool], what: str) -> None:
    """Wait until the pods are so."""
    wait_until(lambda: is_so(lives(cluster)), what, LONG_S)


def seen(cluster: Cluster, name: str) -> tuple[str, ...]:
    """What a container has: its device nodes, its netdevs, its variables of ours."""
    told = execute(cluster, name, "ls /dev/infiniband 2>/dev/null; ls /sys/class/net; env | grep ^RDMA_DEVICES; true")
    return tuple(sorted(told.split()))


def all_seen(cluster: Cluster, names: list[str]) -> dict[str, tuple[str, ...]]:
    """The same of several pods."""
    with ThreadPoolExecutor(4) as threads:
        return dict(zip(names, threads.map(lambda name: seen(cluster, name), names), strict=True))


def burst(cluster: Cluster, prefix: str, meanwhile: Callable[[], str]) -> dict[str, str]:
    """Make 64 pods with an annotation, in eight groups while something is done, and return how each ended: complete,
    bare or failed."""
    names = [f"{prefix}-{number}" for number in range(BURST)]

    def make_all() -> None:
        for first in range(0, BURST, 8):
            create(cluster, *(pod(name, annotations={KEY: SHARED}) for name in names[first : first + 8]))
            time.sleep(0.5)

    begun = time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(make_all)
        time.sleep(0.5)
        meanwhile()
        made.result()
    took = time.monotonic() - begun

    def phases() -> dict[str, str]:
        found = {it["metadata"]["name"]: it["status"]["phase"] for it in cluster.get("pods")["items"]}
        running = lives(cluster)
        return {it: found[it] if found[it] == "Failed" or running[it][2] else "waits" for it in names}

    wait_until(lambda: "waits" not in phases().values(), "each pod of the burst to run or to fail", LONG_S)
    running = [name for name, phase in phases().items() if phase != "Failed"]
    for name in set(names) - set(running):
        assert cluster.get("pod", name)["status"]["reason"] == "UnexpectedAdmissionError"
    has = {name: any(it.startswith("uverbs") for it in nodes) for name, nodes in all_seen(cluster, running).items()}
    ended = {it: "failed" if it not in has else "complete" if has[it] else "bare" for it in names}
    counts = {word: list(ended.values()).count(word) for word in ("complete", "bare", "failed")}
    print(f"{prefix}: {json.dumps(counts)}, {took:.0f} s")
    cluster.kubectl("delete", "pod", *names, "--wait=true", "--timeout=300s", "--grace-period=1")
    return ended


@pytest.fixture(scope="module")
def running(cluster: Cluster, helm: Helm) -> dict[str, tuple[str, ...]]:
    """Fifty pods, made under the old release without the guard's policy, and what each has."""
    helm.upgrade(values("first", "none"))
    wait_until(lambda: bool(cluster.get("resourceslices")["items"]), "the devices for claims", LONG_S)
    asked = fifty()
    create(cluster, *asked)
    names = [it["metadata"]["name"] for it in asked]
    assert len(names) == 50
    wait_for(cluster, lambda found: all(found[name][2] for name in names), "the fifty pods")
    return all_seen(cluster, names)


@pytest.fixture(scope="module")
def first(cluster: Cluster, running: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, int, bool]]:
    """The fifty pods' uids and restarts."""
    found = lives(cluster)
    return {name: found[name] for name in running}


def unchanged(cluster: Cluster, running: dict[str, tuple[str, ...]], first: dict[str, tuple[str, int, bool]]) -> None:
    """Fail unless the fifty pods are what they were."""
    now = lives(cluster)
    assert {name: now[name] for name in first} == first
    assert all_seen(cluster, list(running)) == running


def test_the_old_release_gave_each_of_the_fifty_pods_what_it_asked_for(running: dict[str, tuple[str, ...]]) -> None:
    having = [name for name, has in running.items() if any(it.startswith("uverbs") for it in has)]
    assert sorted(set(running) - set(having)) == [f"plain-{number}" for number in range(6)]
    assert "fab0" in running["alone"]


def test_without_the_policy_an_upgrade_touches_no_pod_and_its_burst_is_counted(
    cluster: Cluster, helm: Helm, running: dict[str, tuple[str, ...]], first: dict[str, tuple[str, int, bool]]
) -> None:
    said: list[str] = []

    def upgrade() -> str:
        said.append(helm.upgrade(values("new", "none")))
        return said[0]

    burst(cluster, "no-policy", upgrade)
    assert "start there WITHOUT their devices" in " ".join(said[0].split())
    unchanged(cluster, running, first)


def test_with_the_policy_no_pod_of_the_burst_of_an_upgrade_is_bare(
    cluster: Cluster, helm: Helm, running: dict[str, tuple[str, ...]], first: dict[str, tuple[str, int, bool]]
) -> None:
    helm.upgrade(values("before", "resource"))
    wait_until(lambda: cluster.get("node", "n1")["status"]["allocatable"].get(GUARD) == "1024", "the guard", LONG_S)
    ended = burst(cluster, "upgrade", lambda: helm.upgrade(values("new", "resource")))
    assert "bare" not in ended.values()
    assert list(ended.values()).count("complete") >= BURST // 2
    unchanged(cluster, running, first)


def test_with_the_policy_no_pod_of_the_burst_of_a_rollback_is_bare(
    cluster: Cluster, helm: Helm, running: dict[str, tuple[str, ...]], first: dict[str, tuple[str, int, bool]]
) -> None:
    ended = burst(cluster, "rollback", helm.roll_back)
    assert "bare" not in ended.values()
    assert list(ended.values()).count("complete") >= BURST // 2
    unchanged(cluster, running, first)


def test_the_way_back_to_the_first_release_touches_no_pod(
    cluster: Cluster, helm: Helm, running: dict[str, tuple[str, ...]], first: dict[str, tuple[str, int, bool]]
) -> None:
    """It reads the journals and specs of the newer one."""
    helm.upgrade(values("first", "none"))
    unchanged(cluster, running, first)
    status = json.loads(helm.daemon("status", "-o", "json"))
    assert status["unserved_count"] == 0
    cluster.kubectl("delete", "pod", "--all", "--wait=true", "--timeout=300s", "--grace-period=1")
    links = cluster.nodes["n1"].machine.run("ip", "-o", "link")
    assert [name for name in (f"rail{number}" for number in range(8)) if f": {name}@" not in links] == []
