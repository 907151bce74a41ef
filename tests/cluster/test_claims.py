"""Claims of our own driver: the scheduler allocates, the kubelet has them prepared, and nri-rdma brings the devices."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.pods import START_S, delete, events, execute, pod, runs, start
from tests.cluster.programs import MINOR
from tests.cluster.test_shares import devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until
from tests.rig.node import load

DRIVER = "rdma.noderesource.dev"
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"
node_name = "THIS_NODE"
kubeconfig = "KUBECONFIG"

[pools.nics]
modes = ["exclusive", "shared"]
door = "claims"
"""
needs_1_36 = pytest.mark.skipif(
    MINOR < 36,
    reason="Kubernetes has extended resources and shares of claims, and rights for a part of their status, since 1.36",
)
RETURN_S = 30.0
"""A container that had to wait for the daemon runs this soon after it is back."""
EIGHT = load("eight")
NAMES = {f"pci-{it.function}".replace(":", "-").replace(".", "-"): number for number, it in enumerate(EIGHT.rdma)}
"""The numbers of the devices by their names in slices."""


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    """Our ResourceSlices."""
    return [it for it in cluster.get("resourceslices")["items"] if it["spec"]["driver"] == DRIVER]


def published(cluster: Cluster) -> list[str]:
    """The devices in our slices."""
    return [device["name"] for it in slices(cluster) for device in it["spec"].get("devices") or ()]


def make(cluster: Cluster, *objects: Mapping[str, Any]) -> None:
    """Create these objects."""
    for it in objects:
        cluster.kubectl("create", "-f", "-", given=it)


def device_class(name: str = "nics", **more: object) -> dict[str, Any]:
    """A DeviceClass for all our devices."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector], **more},
    }


def claim_spec(
    requests: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The spec of a claim: by request what it asks `exactly`, beside the class."""
    asked = [{"name": name, "exactly": {"deviceClassName": "nics", **it}} for name, it in requests.items()]
    config = [] if parameters is None else [{"opaque": {"driver": DRIVER, "parameters": dict(parameters)}}]
    return {"devices": {"requests": asked, "config": config}}


def template(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A ResourceClaimTemplate."""
    kind = "ResourceClaimTemplate"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": {"spec": spec}}


def claiming(name: str, claims: Mapping[str, str], containers: Sequence[Mapping[str, Any]] = ({},)) -> dict[str, Any]:
    """A pod with claims from templates, by their names in the pod; each container has all that it does not choose."""
    listed = [{"name": it} for it in claims]
    return pod(
        name,
        containers=[{"resources": {"claims": listed}, **it} for it in containers],
        resourceClaims=[{"name": it, "resourceClaimTemplateName": made} for it, made in claims.items()],
    )


def named(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A ResourceClaim that outlives pods."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


def claims_of(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """The claims of a pod; those of pods that were deleted may still be there."""
    asked = cluster.get("pod", name)
    made = [it["resourceClaimName"] for it in asked["status"].get("resourceClaimStatuses") or ()]
    given = [it["resourceClaimName"] for it in asked["spec"]["resourceClaims"] if "resourceClaimName" in it]
    return [cluster.get("resourceclaim", it) for it in (*made, *given)]


def allocated(cluster: Cluster, name: str, request: str) -> list[int]:
    """The numbers of the devices that the only claim of a pod was allocated for a request."""
    (claim,) = claims_of(cluster, name)
    results = claim["status"]["allocation"]["devices"]["results"]
    return [NAMES[it["device"]] for it in results if it["request"] == request]


def verbs(cluster: Cluster, name: str, container: str = "c0") -> list[int]:
    """The numbers of the devices whose nodes a container has."""
    found = devices(cluster, name, container)
    return [int(it.removeprefix("uverbs")) for it in found if it.startswith("uverbs")]


def macs(cluster: Cluster, name: str) -> list[str]:
    """The addresses of a pod's netdevs."""
    return execute(cluster, name, "cat /sys/class/net/*/address").split()


def mac_of(number: int) -> str:
    """The address of a device's netdev."""
    (netdev,) = [it for it in EIGHT.netdevs if it.function == EIGHT.rdma[number].function]
    return netdev.mac


def account(cluster: Cluster, name: str) -> str:
    """Apply the manifests that a node's nri-rdma prints; return a token of their account, bound to that node."""
    node = cluster.nodes[name]
    manifests = node.nri_rdma("claims", "manifests", "--config", str(node.machine.folder / "config.toml"))
    items = [*yaml.safe_load_all(manifests)]
    cluster.kubectl("apply", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})
    return token_of(cluster, name)


def token_of(cluster: Cluster, node: str) -> str:
    """A token of the account of the manifests, bound to a node."""
    uid = cluster.get("node", node)["metadata"]["uid"]
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node}", f"--bound-object-uid={uid}")
    return cluster.kubectl("create", "token", "nri-rdma", "-n=kube-system", *bound).strip()


def restart_as(cluster: Cluster, name: str, token: str) -> None:
    """Start a node's nri-rdma anew with that token."""
    node = cluster.nodes[name]
    node.kill("nri-rdma")
    config = json.loads(node.credentials.read_text())
    config["users"][0]["user"] = {"token": token}
    node.credentials = node.machine.folder / "account.kubeconfig"
    node.credentials.write_text(json.dumps(config))
    cluster.kubectl("delete", "resourceslices", "--all")
    node.start_driver()


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class())
    return cluster


def test_a_pod_has_exactly_the_device_that_its_claim_was_allocated(served: Cluster) -> None:
    make(served, template("one", claim_spec({"nic": {}}, {"interface": {"name": "rail0", "mtu": 4000}})))
    before = slices(served)
    start(served, claiming("one", {"rdma": "one"}))
    (index,) = allocated(served, "one", "nic")
    assert verbs(served, "one") == [index]
    shown = execute(served, "one", "cat /sys/class/net/rail0/address /sys/class/net/rail0/mtu").split()
    assert shown == [mac_of(index), "4000"]
    assert "RDMA_DEVICES_RDMA_NIC=" in execute(served, "one", "env")
    assert slices(served) == before  # also of the device that is in the pod
    delete(served, "one")


def test_containers_have_the_devices_of_their_requests_and_the_next_pod_gets_them_again(served: Cluster) -> None:
    make(served, template("parts", claim_spec({"left": {"count": 2}, "right": {}})))
    left = {"resources": {"claims": [{"name": "rdma", "request": "left"}]}}
    right = {"resources": {"claims": [{"name": "rdma", "request": "right"}]}}
    for name in ("first", "second"):
        start(served, claiming(name, {"rdma": "parts"}, [left, right, {"resources": {}}]))
        assert sorted(verbs(served, name, "c0")) == sorted(allocated(served, name, "left"))
        assert verbs(served, name, "c1") == allocated(served, name, "right")
        assert verbs(served, name, "c2") == []
        wanted = {mac_of(it) for it in (*allocated(served, name, "left"), *allocated(served, name, "right"))}
        assert wanted <= set(macs(served, name))
        delete(served, name)


def test_pods_share_a_named_claim_and_the_devices_go_with_the_last_of_them(served: Cluster) -> None:
    make(served, named("both", claim_spec({"nic": {}}, {"mode": "shared"})))
    for name in ("s1", "s2"):
        asked = claiming(name, {"rdma": ""})
        asked["spec"]["resourceClaims"] = [{"name": "rdma", "resourceClaimName": "both"}]
        start(served, asked)
    assert verbs(served, "s1") == verbs(served, "s2") == allocated(served, "s2", "nic")
    assert "RDMA_DEVICES_BOTH_NIC=" in execute(served, "s2", "env")
    for name in ("s1", "s2"):
        delete(served, name)
    served.kubectl("delete", "resourceclaim", "both", "--timeout=30s")


def test_a_nic_and_a_gpu_of_one_root_are_matched_by_attribute(served: Cluster) -> None:
    spec = claim_spec({"a": {}, "b": {}})
    spec["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode", "requests": ["a", "b"]}]
    make(served, template("near", spec))
    start(served, claiming("near", {"rdma": "near"}))
    homes = {it.address: it.numa_node for it in EIGHT.functions}
    chosen = [*allocated(served, "near", "a"), *allocated(served, "near", "b")]
    assert len({homes[EIGHT.rdma[it].function] for it in chosen}) == 1
    assert sorted(verbs(served, "near")) == sorted(chosen)
    delete(served, "near")


def test_admin_access_gives_nodes_beside_the_owner_and_moves_nothing(served: Cluster) -> None:
    """A namespace with the label may look on at any device, also at one that a pod has alone, and keeps nobody from
    it."""
    adminspace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "monitoring", "labels": {"resource.kubernetes.io/admin-access": "true"}},
    }
    every = claim_spec({"every": {"adminAccess": True, "allocationMode": "All"}})
    refused = served.kubectl("create", "-f", "-", given=named("eyes", every), fails=True)
    assert "admin-access" in refused
    make(served, adminspace, template("alone", claim_spec({"nic": {}}, {"mode": "exclusive"})))
    make(served, {**named("eyes", every), "metadata": {"name": "eyes", "namespace": "monitoring"}})
    start(served, claiming("owner", {"rdma": "alone"}))
    (own,) = allocated(served, "owner", "nic")
    before = slices(served)
    assert on_host(served) == {*range(8)} - {own}
    asked = claiming("eyes", {"rdma": ""})
    asked["metadata"]["namespace"] = "monitoring"
    asked["spec"]["resourceClaims"] = [{"name": "rdma", "resourceClaimName": "eyes"}]
    served.kubectl("create", "-f", "-", given=asked)
    look = ("exec", "-n=monitoring", "eyes", "--", "sh", "-c")
    served.wait("the pod that looks on", lambda: _phase_in(served, "monitoring", "eyes") == "Running", START_S)
    assert sorted(served.kubectl(*look, "ls /dev/infiniband").split()) == [
        "rdma_cm",
        *(f"uverbs{it}" for it in range(8)),
    ]
    told = served.kubectl(*look, "env")
    assert "RDMA_DEVICES_EYES_EVERY=" in told
    found = served.kubectl(*look, "cat /sys/class/net/*/address").split()
    assert not {mac_of(number) for number in range(8)} & set(found)
    assert on_host(served) == {*range(8)} - {own}
    assert (mac_of(own) in macs(served, "owner"), slices(served) == before) == (True, True)
    for name in ("owner", "second"):  # who comes later gets devices, too, and the first one gives its back
        if name == "second":
            start(served, claiming("second", {"rdma": "alone"}))
        (number,) = allocated(served, name, "nic")
        assert mac_of(number) in macs(served, name)
        delete(served, name)
    wait_until(lambda: on_host(served) == {*range(8)}, "all netdevs on the host", 30)
    served.kubectl("delete", "namespace", "monitoring", "--timeout=60s")


def on_host(cluster: Cluster) -> set[int]:
    """The numbers of the devices whose netdevs are in the node's own network namespace."""
    links = json.loads(cluster.nodes["n1"].machine.run("ip", "-j", "link"))
    found = {it.get("address") for it in links}
    return {number for number in range(8) if mac_of(number) in found}


def _phase_in(cluster: Cluster, namespace: str, name: str) -> str:
    return cluster.kubectl("get", "pod", name, f"-n={namespace}", "-o=jsonpath={.status.phase}", fails=True)


def test_status_says_that_the_driver_serves_and_its_check_names_a_rival(served: Cluster) -> None:
    node = served.nodes["n1"]
    wait_until(lambda: "8 devices published in 1 slice" in node.nri_rdma("status"), "what is published", 15)
    told = node.nri_rdma("status")
    print(
        *(
            line
            for line in told.splitlines()
            if line.startswith("Claims") or "claims prepared" in line or "published" in line
        ),
        sep="\n",
    )
    assert f"driver {DRIVER}: registered with the kubelet" in told
    assert node.nri_rdma("status", "--check", fails=True) == ""
    rival: dict[str, Any] = {"driver": "rival.example", "nodeName": "n1", "devices": [{"name": next(iter(NAMES))}]}
    rival["pool"] = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    kind = "ResourceSlice"
    make(served, {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "rival"}, "spec": rival})
    node.machine.run("ip", "link", "set", "dev", EIGHT.netdevs[0].name, "alias", "looked-at")  # a reason to look
    words = "the driver rival.example publishes devices of ours, too"
    wait_until(lambda: words in node.nri_rdma("status", "--check", fails=True), "the rival", 30)
    served.kubectl("delete", "resourceslice", "rival")


def test_what_cannot_be_served_is_refused_when_it_is_prepared_with_the_key(served: Cluster) -> None:
    make(served, template("typo", claim_spec({"nic": {}}, {"interfaces": {"name": "rail0"}})))
    served.kubectl("create", "-f", "-", given=claiming("typo", {"rdma": "typo"}))
    served.wait("the refusal", lambda: any("interfaces" in it for it in events(served, "typo")), 60)
    (told,) = {it[it.index("nri-rdma:") :] for it in events(served, "typo") if "nri-rdma:" in it}
    print(told)
    assert "ANNOTATION-UNKNOWN-KEY" in told
    assert "did you mean interface" in told or "interface" in told.partition("Next:")[2]
    delete(served, "typo")


def test_slices_that_are_deleted_are_there_again_and_nothing_is_written_without_a_change(served: Cluster) -> None:
    served.kubectl("delete", "resourceslices", "--all")
    wait_until(lambda: len(published(served)) == 8, "the slice", 15)
    (before,) = [it["metadata"]["resourceVersion"] for it in slices(served)]
    served.nodes["n1"].kill("kubelet")
    served.nodes["n1"].start_kubelet()
    wait_until(lambda: _is_new(served, before), "a slice after the kubelet's start, which deletes it", 60)
    (after,) = [it["metadata"]["resourceVersion"] for it in slices(served)]
    time.sleep(12)
    assert [it["metadata"]["resourceVersion"] for it in slices(served)] == [after]


def _is_new(cluster: Cluster, before: str) -> bool:
    return [it["metadata"]["resourceVersion"] for it in slices(cluster)] not in ([], [before])


def test_with_the_daemon_dead_a_prepared_claim_starts_no_container_and_does_after_its_return(served: Cluster) -> None:
    node = served.nodes["n1"]
    make(served, named("kept", claim_spec({"nic": {}})))
    asked = claiming("guarded", {"rdma": ""})
    asked["spec"]["resourceClaims"] = [{"name": "rdma", "resourceClaimName": "kept"}]
    asked["spec"]["restartPolicy"] = "Always"
    asked["spec"]["containers"][0]["command"] = ["sh", "-c", "until [ -e /end ]; do sleep 0.1; done"]
    start(served, asked)
    (number,) = allocated(served, "guarded", "nic")
    node.kill("nri-rdma")
    execute(served, "guarded", "touch /end")
    served.wait("the guard's refusal", lambda: any("DAEMON-ABSENT" in it for it in events(served, "guarded")), 60)
    assert not runs(served, "guarded")
    node.start_daemon()
    served.wait("the container", lambda: runs(served, "guarded"), RETURN_S)
    assert verbs(served, "guarded") == [number]
    assert mac_of(number) in macs(served, "guarded")
    delete(served, "guarded")
    served.kubectl("delete", "resourceclaim", "kept", "--timeout=30s")


def test_with_the_rights_of_its_manifests_the_daemon_works_and_writes_no_slice_of_another_node(served: Cluster) -> None:
    served.kubectl("delete", "deviceclass", "nics")  # theirs is the one that counts
    token = account(served, "n1")
    (mine,) = slices(served)
    others = {**mine, "metadata": {"name": "of-n2"}, "spec": {**mine["spec"], "nodeName": "n2"}}
    wait_until(lambda: "for node n1" in _as(served, token, others), "the admission policy, which begins late", 30)
    print(_as(served, token, others))
    assert "bound to no pod" in _as(
        served, served.kubectl("create", "token", "nri-rdma", "-n=kube-system").strip(), mine
    )
    restart_as(served, "n1", token)
    wait_until(lambda: len(published(served)) == 8, "the slice", 30)
    start(served, claiming("account", {"rdma": "one"}))
    assert len(verbs(served, "account")) == 1
    delete(served, "account")


def _as(cluster: Cluster, token: str, given: Mapping[str, Any]) -> str:
    """What the API server says to the owner of a token who writes an object, without writing it."""
    made = {**given, "metadata": {"name": "another"}}
    return cluster.kubectl("create", "--dry-run=server", f"--token={token}", "-f", "-", given=made, fails=True)
