"""The guard on a node whose runtime is not set up for it: an admission policy gives a resource to pods that may ask us,
and none of them runs without its devices. The first tests, without the policy, show what it is for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.gpu_driver import DRIVER as GPUS
from tests.cluster.gpu_driver import gpu_slice
from tests.cluster.pods import delete, events, execute, phase, pod, runs, start
from tests.cluster.test_claims import claim_spec, device_class, make, published, template, verbs
from tests.cluster.test_shares import allocatable
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

RESOURCE = "rdma.noderesource.dev/guard"
KEY = "rdma.noderesource.dev"
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"
guard_resource = "{RESOURCE}"
node_name = "THIS_NODE"
kubeconfig = "KUBECONFIG"

[pools.nics]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"] }}
modes = ["exclusive", "shared"]
door = "claims"

[pools.default]
select = {{ device = ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"] }}
modes = ["exclusive", "shared"]
"""
BACK_S = 60.0
"""A container that had to wait for the daemon runs this soon after it is back."""


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the kubelet knows devices and guard resource, with a foreign driver of claims beside ours."""
    cluster.nodes["n1"].start_gpu_driver()
    wait_until(lambda: len(published(cluster)) == 4, "the node's ResourceSlice", 30)
    wait_until(lambda: allocatable(cluster, RESOURCE) == "1024", "the guard resource", 30)
    of_gpus = device_class("gpus")
    of_gpus["spec"]["selectors"] = [{"cel": {"expression": f'device.driver == "{GPUS}"'}}]
    make(cluster, device_class(), template("nic", claim_spec({"nic": {}})), of_gpus, gpu_slice("eight", "n1"))
    foreign = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpus"}}]}}
    make(cluster, template("gpu", foreign))
    return cluster


@pytest.fixture(scope="module")
def policy(served: Cluster) -> Cluster:
    """The cluster with the policy."""
    apply_policy(served)
    return served


def apply_policy(cluster: Cluster) -> None:
    """Apply the policy that the node's own command prints, and wait until it changes pods."""
    node = cluster.nodes["n1"]
    printed = node.nri_rdma("claims", "manifests", "--config", str(node.machine.folder / "config.toml"))
    items = [*yaml.safe_load_all(printed)]
    cluster.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})

    def changes() -> bool:
        asked = pod("probe", annotations={KEY: ""})
        answered = cluster.kubectl("create", "-f", "-", "--dry-run=server", "-o", "yaml", given=asked)
        return RESOURCE in answered

    wait_until(changes, "the policy", 30)


def annotated(name: str, **more: Any) -> dict[str, Any]:
    """A pod that asks for a NIC by an annotation."""
    return pod(name, annotations={KEY: "[{count: 1, mode: exclusive}]"}, **more)


def unnamed(name: str, made_of: str = "nic") -> dict[str, Any]:
    """A pod with a claim that none of its containers names."""
    return pod(name, resourceClaims=[{"name": "rdma", "resourceClaimTemplateName": made_of}])


def limits(cluster: Cluster, name: str) -> list[dict[str, str]]:
    """The limits of all containers of a pod, the init containers first."""
    spec = cluster.get("pod", name)["spec"]
    return [it["resources"].get("limits", {}) for it in (*spec.get("initContainers", ()), *spec["containers"])]


@contextmanager
def without_daemon(cluster: Cluster) -> Iterator[None]:
    """Meanwhile nri-rdma is dead, and the scheduler knows."""
    node = cluster.nodes["n1"]
    node.kill("nri-rdma")
    wait_until(lambda: allocatable(cluster, RESOURCE) == "0", "the end of the guard resource", 30)
    try:
        yield
    finally:
        node.start_driver()
        wait_until(lambda: allocatable(cluster, RESOURCE) == "1024", "the guard resource", 30)


@contextmanager
def daemon_dies_before_the_sandbox(cluster: Cluster, asked: dict[str, Any]) -> Iterator[None]:
    """Make a pod whose claim is prepared, and whose sandbox starts when nri-rdma is dead, which comes back afterwards.
    Meanwhile the pod's network waits for the lock of the addresses."""
    node, before = cluster.nodes["n1"], _prepared(cluster)
    node.machine.start("addresses", sys.executable, "-c", _LOCK)
    locked = node.machine.programs["addresses"].log
    try:
        wait_until(lambda: "locked" in locked.read_text(), "the lock", 30)
        cluster.kubectl("create", "-f", "-", given=asked)
        wait_until(lambda: _prepared(cluster) > before, "the prepared claim", 60)
        node.kill("nri-rdma")
    finally:
        node.kill("addresses")
        locked.unlink()
    try:
        yield
    finally:
        node.start_driver()


_LOCK = """
import fcntl, os, time
os.makedirs("/run/cni-ipam/pods", exist_ok=True)
file = open("/run/cni-ipam/pods/lock", "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(600)
"""


def _prepared(cluster: Cluster) -> int:
    """How many claims of ours have a CDI spec on the node."""
    return cluster.nodes["n1"].machine.run("sh", "-c", "ls /var/run/cdi 2>/dev/null || true").count("-claim-")


# Without the policy


def test_without_the_policy_an_annotation_pod_of_a_dead_daemon_starts_bare(served: Cluster) -> None:
    with without_daemon(served):
        start(served, annotated("bare"))
        assert verbs(served, "bare") == []
    delete(served, "bare")


def test_without_the_policy_an_unnamed_claim_of_a_dead_daemon_starts_bare(served: Cluster) -> None:
    with daemon_dies_before_the_sandbox(served, unnamed("bare")):
        served.wait("the pod", lambda: runs(served, "bare"), 90)
        assert verbs(served, "bare") == []
    delete(served, "bare")


# With it


def test_pods_that_ask_have_the_resource_and_their_devices(policy: Cluster) -> None:
    first = {"name": "first", "image": pod("")["spec"]["containers"][0]["image"], "command": ["true"]}
    start(policy, annotated("asks", initContainers=[{**first, "imagePullPolicy": "Never"}], containers=({}, {})))
    assert limits(policy, "asks") == [{RESOURCE: "1"}] * 3
    start(policy, unnamed("claims"))
    assert limits(policy, "claims") == [{RESOURCE: "1"}]
    assert [len(verbs(policy, name)) for name in ("asks", "claims")] == [1, 1]
    assert "eth0" in execute(policy, "claims", "ls /sys/class/net")
    for name in ("asks", "claims"):
        delete(policy, name)


def test_a_container_that_its_pods_annotation_leaves_out_starts_with_nothing(policy: Cluster) -> None:
    asked = pod("half", annotations={f"{KEY}/container.c1": "[{count: 1, mode: exclusive}]"}, containers=({}, {}))
    start(policy, asked)
    policy.wait("both containers", lambda: runs(policy, "half") and runs(policy, "half", "c1"))
    assert (verbs(policy, "half"), len(verbs(policy, "half", "c1"))) == ([], 1)
    delete(policy, "half")


def test_pods_that_ask_us_for_nothing_start(policy: Cluster) -> None:
    start(policy, unnamed("foreign", "gpu"))
    start(policy, pod("empty", annotations={KEY: ""}))
    start(policy, pod("plain", containers=[{"resources": {"limits": {"memory": "64Mi"}}}]))
    left_out = annotated("out")
    left_out["metadata"]["labels"] = {f"{KEY}/guard": "off"}
    start(policy, left_out)
    assert [limits(policy, name) for name in ("foreign", "empty")] == [[{RESOURCE: "1"}]] * 2
    assert [limits(policy, name) for name in ("plain", "out")] == [[{"memory": "64Mi"}], [{}]]
    for name in ("foreign", "empty", "plain", "out"):
        delete(policy, name)


def test_a_pod_that_has_some_of_the_resource_keeps_its_own(policy: Cluster) -> None:
    own = {RESOURCE: "2", "memory": "64Mi"}
    start(policy, annotated("own", containers=({"resources": {"limits": own}}, {})))
    assert limits(policy, "own") == [own, {RESOURCE: "1"}]
    delete(policy, "own")


def test_a_container_that_is_added_later_in_the_admission_has_the_resource_too(policy: Cluster) -> None:
    """Webhooks and other policies add sidecars."""
    image = pod("")["spec"]["containers"][0]["image"]
    added = f"Object.spec.containers{{name: 'sidecar', image: '{image}', imagePullPolicy: 'Never'}}"
    spec = {
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ],
            "objectSelector": {"matchLabels": {"sidecar": "yes"}},
        },
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": f"Object{{spec: Object.spec{{containers: [{added}]}}}}"},
            }
        ],
    }
    version, name = "admissionregistration.k8s.io/v1", {"name": "z-sidecar"}
    kind = "MutatingAdmissionPolicy"
    binding = {"policyName": "z-sidecar"}
    make(
        policy,
        {"apiVersion": version, "kind": kind, "metadata": name, "spec": spec},
        {"apiVersion": version, "kind": f"{kind}Binding", "metadata": name, "spec": binding},
    )
    asked = annotated("injected")
    asked["metadata"]["labels"] = {"sidecar": "yes"}
    dry = ("create", "-f", "-", "--dry-run=server", "-o", "yaml")
    wait_until(lambda: "name: sidecar" in policy.kubectl(*dry, given=asked), "the other policy", 30)
    start(policy, asked)
    assert limits(policy, "injected") == [{RESOURCE: "1"}] * 2
    delete(policy, "injected")


def test_in_a_namespace_with_the_label_pods_are_as_they_were_written(policy: Cluster) -> None:
    labels = {f"{KEY}/guard": "off"}
    make(policy, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "left-out", "labels": labels}})
    asked = annotated("probe")
    asked["metadata"]["namespace"] = "left-out"
    asked["spec"]["serviceAccountName"] = ""
    answered = policy.kubectl("create", "-f", "-", "--dry-run=server", "-o", "yaml", given=asked)
    assert RESOURCE not in answered


def test_while_the_daemon_is_dead_annotation_pods_wait_and_plain_pods_start(policy: Cluster) -> None:
    with without_daemon(policy):
        policy.kubectl("create", "-f", "-", given=annotated("waits"))
        start(policy, pod("plain"))
        wait_until(lambda: any("Insufficient" in it for it in events(policy, "waits")), "the scheduler's word", 30)
        assert phase(policy, "waits") == "Pending"
    policy.wait("the pod that waited", lambda: runs(policy, "waits"), BACK_S)
    assert len(verbs(policy, "waits")) == 1
    for name in ("waits", "plain"):
        delete(policy, name)


def test_an_unnamed_claim_whose_daemon_died_after_it_was_prepared_waits_and_is_served(policy: Cluster) -> None:
    with daemon_dies_before_the_sandbox(policy, unnamed("late")):
        wait_until(lambda: any("DAEMON-ABSENT" in it for it in events(policy, "late")), "the guard's refusal", 90)
        assert not runs(policy, "late")
    policy.wait("the pod that waited", lambda: runs(policy, "late"), 120)
    assert len(verbs(policy, "late")) == 1
    delete(policy, "late")


def test_of_pods_made_while_the_daemon_is_killed_again_and_again_none_runs_bare(policy: Cluster) -> None:
    node, asked = policy.nodes["n1"], [f"k{number}" for number in range(12)]
    shared = {KEY: "[{count: 1, mode: shared}]"}
    for number, name in enumerate(asked):
        policy.kubectl("create", "-f", "-", given=pod(name, annotations=shared))
        if number % 4 == 3:
            node.kill("nri-rdma")
            node.start_driver()
    policy.wait("each to run or to fail", lambda: all(_is_decided(policy, name) for name in asked), 180)
    found = {name: len(verbs(policy, name)) for name in asked if runs(policy, name)}
    print(f"{len(found)} complete, {len(asked) - len(found)} refused by the kubelet")
    assert found == dict.fromkeys(found, 1)
    assert len(found) >= len(asked) // 2
    for name in asked:
        delete(policy, name)


def _is_decided(cluster: Cluster, name: str) -> bool:
    """Whether the pod runs, or was bound to the node in the gap and refused there (UnexpectedAdmissionError)."""
    return runs(cluster, name) or phase(cluster, name) == "Failed"
