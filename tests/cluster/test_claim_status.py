"""The status of claims, written by a daemon that has the rights of its manifests and no others."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from ipaddress import ip_interface
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node import Node
from tests.cluster.pods import START_S, delete, events, execute, phase, start
from tests.cluster.test_claims import (
    CONFIG,
    DRIVER,
    account,
    claim_spec,
    claiming,
    claims_of,
    make,
    named,
    needs_1_36,
    published,
    restart_as,
    template,
    token_of,
)
from tests.rig.deadline import wait_until

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published by a daemon with the account of the manifests."""
    restart_as(cluster, "n1", account(cluster, "n1"))
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    return cluster


def ours(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of our driver in a claim's status."""
    return [it for it in claim["status"].get("devices") or () if it["driver"] == DRIVER]


def ready(claim: Mapping[str, Any]) -> tuple[str, str]:
    """Status and reason of the condition Ready of a claim's only device; empty where there is none."""
    found = [it for entry in ours(claim) for it in entry["conditions"] if it["type"] == "Ready"]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


def claim_named(cluster: Cluster, name: str) -> Callable[[], dict[str, Any]]:
    """The claim of that name, whenever it is asked for."""
    return lambda: cluster.get("resourceclaim", name)


def claim_of_pod(cluster: Cluster, name: str) -> Callable[[], dict[str, Any]]:
    """The only claim of a pod, whenever it is asked for."""

    def asked() -> dict[str, Any]:
        return next(iter(claims_of(cluster, name)), {"status": {}})

    return asked


def await_ready(cluster: Cluster, claim: Callable[[], dict[str, Any]], status: str, reason: str) -> dict[str, Any]:
    """Wait until a claim says this of its device; return the entry."""
    cluster.wait(f"Ready={status}, {reason}", lambda: ready(claim()) == (status, reason), 40)
    (entry,) = ours(claim())
    return entry


def message(entry: Mapping[str, Any]) -> str:
    """The sentence of an entry's first condition."""
    return str(entry["conditions"][0]["message"])


def using(name: str, claim: str, **more: object) -> dict[str, Any]:
    """A pod with a claim that exists."""
    asked = claiming(name, {"rdma": ""})
    asked["spec"].update(resourceClaims=[{"name": "rdma", "resourceClaimName": claim}], **more)
    return asked


def waiting(name: str, claim: str) -> dict[str, Any]:
    """A pod for which a claim is reserved, and which does not start before there is a ConfigMap of its name."""
    asked = using(name, claim, volumes=[{"name": "later", "configMap": {"name": name}}])
    asked["spec"]["containers"][0]["volumeMounts"] = [{"name": "later", "mountPath": "/later"}]
    return asked


def link_in_pod(cluster: Cluster, interface: str) -> dict[str, Any]:
    """What `ip -j` says of a netdev in the only pod that has one of that name."""
    machine = cluster.nodes["n1"].machine
    spaces = [line.split()[0] for line in machine.run("ip", "netns", "list").splitlines() if line]
    asked = [machine.run("ip", "-n", it, "-j", "addr", "show", "dev", interface, fails=True) for it in spaces]
    ((link,),) = [json.loads(it) for it in asked if it.startswith("[")]
    found: dict[str, Any] = link
    return found


def test_the_claim_of_a_pod_shows_what_ip_says_in_the_pod(served: Cluster) -> None:
    parameters = {"interface": {"name": "rail0", "addresses": ["192.0.2.7/24", "2001:db8::7/64"]}}
    make(served, template("shown", claim_spec({"nic": {}}, parameters)))
    start(served, claiming("shown", {"rdma": "shown"}))
    entry = await_ready(served, claim_of_pod(served, "shown"), "True", "Attached")
    print(json.dumps(entry))
    link, network = link_in_pod(served, "rail0"), entry["networkData"]
    print(json.dumps(link))
    addresses = [f"{it['local']}/{it['prefixlen']}" for it in link["addr_info"] if it["scope"] == "global"]
    assert (network["interfaceName"], network["hardwareAddress"]) == ("rail0", link["address"])
    assert sorted(network["ips"]) == sorted(addresses) == ["192.0.2.7/24", "2001:db8::7/64"]
    data, environment = entry["data"], execute(served, "shown", "env")
    assert data["mode"] == "exclusive"
    assert f"RDMA_DEVICES_RDMA_NIC={data['rdmaDevice']}\n" in environment
    shown = execute(served, "shown", "ls /dev/infiniband/*").split()
    assert sorted(data["nodes"]) == sorted(shown)
    delete(served, "shown")


def test_addresses_that_a_netdev_takes_along_are_shown(served: Cluster) -> None:
    make(served, template("along", claim_spec({"nic": {}}, {"interface": {"name": "rail0"}})))
    start(served, claiming("along", {"rdma": "along"}))
    network = await_ready(served, claim_of_pod(served, "along"), "True", "Attached")["networkData"]
    addresses = [it for it in link_in_pod(served, "rail0")["addr_info"] if it["scope"] == "global"]
    print(network, addresses)
    assert addresses
    assert {str(ip_interface(it)) for it in network["ips"]} >= {f"{it['local']}/{it['prefixlen']}" for it in addresses}
    delete(served, "along")


def test_a_claim_whose_pod_has_ended_is_not_ready_until_the_next_pod_has_it(served: Cluster) -> None:
    make(served, named("kept", claim_spec({"nic": {}}, {"interface": {"name": "rail0"}})))
    claim = claim_named(served, "kept")
    start(served, using("first", "kept"))
    before = await_ready(served, claim, "True", "Attached")
    make(served, waiting("second", "kept"))
    served.wait("the reservation", lambda: len(claim()["status"]["reservedFor"]) == 2, 30)
    delete(served, "first")
    after = await_ready(served, claim, "False", "Returned")
    print(json.dumps(after))
    assert "networkData" not in after
    assert "data" not in after
    assert after["conditions"][0]["lastTransitionTime"] >= before["conditions"][0]["lastTransitionTime"]
    served.kubectl("create", "configmap", "second")
    await_ready(served, claim, "True", "Attached")
    delete(served, "second")
    served.kubectl("delete", "resourceclaim", "kept", "--timeout=30s")


def test_an_attach_that_is_refused_is_not_ready_with_the_sentence(served: Cluster) -> None:
    make(served, template("taken", claim_spec({"nic": {}}, {"interface": {"name": "eth0"}})))
    make(served, claiming("taken", {"rdma": "taken"}))
    entry = await_ready(served, claim_of_pod(served, "taken"), "False", "AttachFailed")
    print(message(entry))
    assert "the pod has an interface eth0 already" in message(entry)
    delete(served, "taken")


def test_a_pod_on_the_hosts_network_keeps_its_device_until_it_is_deleted_and_its_claim_says_so(served: Cluster) -> None:
    make(served, template("moves", claim_spec({"nic": {"count": 8}}, {"mode": "exclusive"})))
    asked = claiming("onhost", {"rdma": "moves"})
    asked["spec"]["hostNetwork"] = True
    make(served, asked)
    for number in range(8):
        served.wait("the refusal", lambda: len(ours(claim_of_pod(served, "onhost")())) > number, 40)  # noqa: B023
    entries = ours(claim_of_pod(served, "onhost")())
    print(message(entries[0]))
    for entry in entries:
        assert entry["conditions"][0]["reason"] == "AttachFailed"
        assert "HOST-NETWORK" in message(entry)
        assert "(delete it: until then its claim keeps the device from others)" in message(entry)
    make(served, claiming("next", {"rdma": "moves"}))
    served.wait("the scheduler", lambda: any("cannot allocate" in it for it in events(served, "next")), 30)
    delete(served, "onhost")
    served.wait("the next pod", lambda: phase(served, "next") == "Running", START_S)
    delete(served, "next")


def test_a_second_pod_of_a_claim_that_one_has_alone_is_told_how_both_can_have_devices(served: Cluster) -> None:
    make(served, named("alone", claim_spec({"nic": {}}, {"mode": "exclusive"})))
    start(served, using("a1", "alone"))
    make(served, using("a2", "alone"))
    served.wait("the refusal", lambda: any("nri-rdma:" in it for it in events(served, "a2")), 60)
    told = next(it[it.index("nri-rdma:") :] for it in events(served, "a2") if "nri-rdma:" in it)
    print(told)
    assert "is held by another pod, by the same claim" in told
    assert "Next: ask for mode: shared, or give each pod a claim of its own (resourceClaimTemplateName)." in told
    assert ready(claim_named(served, "alone")()) == ("True", "Attached")
    delete(served, "a1")
    served.wait("the second pod", lambda: phase(served, "a2") == "Running", START_S)
    delete(served, "a2")
    served.kubectl("delete", "resourceclaim", "alone", "--timeout=30s")


def test_a_claim_that_cannot_be_prepared_is_not_ready_with_the_key(served: Cluster) -> None:
    make(served, template("typo", claim_spec({"nic": {}}, {"interfaces": {"name": "rail0"}})))
    make(served, claiming("typo", {"rdma": "typo"}))
    entry = await_ready(served, claim_of_pod(served, "typo"), "False", "PrepareFailed")
    print(message(entry))
    assert "interfaces" in message(entry)
    delete(served, "typo")


def test_a_device_of_two_pods_is_ready_until_the_last_of_them_ends(served: Cluster) -> None:
    make(served, named("both", claim_spec({"nic": {}}, {"mode": "shared"})))
    claim = claim_named(served, "both")
    for name in ("s1", "s2"):
        start(served, using(name, "both"))
    entry = await_ready(served, claim, "True", "Attached")
    assert entry["data"]["mode"] == "shared"
    assert "networkData" not in entry
    make(served, waiting("s3", "both"))
    served.wait("the reservation", lambda: len(claim()["status"]["reservedFor"]) == 3, 30)
    delete(served, "s1")
    assert ready(claim()) == ("True", "Attached")
    delete(served, "s2")
    await_ready(served, claim, "False", "Returned")
    delete(served, "s3")
    served.kubectl("delete", "resourceclaim", "both", "--timeout=30s")


def test_what_ends_while_the_daemon_is_away_is_said_after_its_return(served: Cluster) -> None:
    node = served.nodes["n1"]
    make(served, named("away", claim_spec({"nic": {}}, {"mode": "shared"})))  # the rig's netdevs die with a pod
    claim = claim_named(served, "away")
    start(served, using("gone", "away"))
    await_ready(served, claim, "True", "Attached")
    make(served, waiting("next", "away"))
    served.wait("the reservation", lambda: len(claim()["status"]["reservedFor"]) == 2, 30)
    node.kill("nri-rdma")
    served.kubectl("delete", "pod", "gone", "--wait=false")
    served.wait("the end of the container", lambda: not _has_containers(served, "gone"), 60)
    assert ready(claim()) == ("True", "Attached")
    node.start_driver()
    await_ready(served, claim, "False", "Returned")
    delete(served, "next")
    served.kubectl("delete", "resourceclaim", "away", "--timeout=30s")


def _has_containers(cluster: Cluster, name: str) -> bool:
    listed = cluster.nodes["n1"].machine.run("ip", "netns", "list")
    return bool(listed.strip()) and name in cluster.kubectl("get", "pods", "-o=name")


@needs_1_36
def test_the_daemons_account_may_write_what_it_needs_and_nothing_else(served: Cluster) -> None:
    make(served, template("rights", claim_spec({"nic": {}})))
    start(served, claiming("rights", {"rdma": "rights"}))
    claim = claim_of_pod(served, "rights")
    entry = await_ready(served, claim, "True", "Attached")
    name, status = claim()["metadata"]["name"], claim()["status"]
    served.kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}})
    here, elsewhere = token_of(served, "n1"), token_of(served, "n9")

    def answer(token: str, changed: Mapping[str, Any]) -> str:
        return _patched(served, token, f"{PATH}/{name}/status", {"status": changed})

    cleared: dict[str, Any] = {"devices": []}
    others = {"devices": [entry, {**entry, "driver": "gpu.example.com"}]}
    unreserved = {"reservedFor": [], "devices": status["devices"]}
    for told in (answer(here, cleared), answer(elsewhere, cleared), answer(here, others), answer(here, unreserved)):
        print(told)
    assert answer(here, cleared) == "200"
    assert "arbitrary-node:patch" in answer(elsewhere, cleared)
    assert "associated-node:patch" in answer(here, others)
    assert "resourceclaims/binding" in answer(here, unreserved)
    served.kubectl("delete", "node", "n9")
    delete(served, "rights")


def _patched(cluster: Cluster, token: str, path: str, changes: Mapping[str, Any]) -> str:
    """What the API server answers to the owner of a token who changes an object, without changing it: 200, or the
    sentence of its refusal. kubectl would read the object first, for which a daemon has no right."""
    config = json.loads(Path(cluster.environment["KUBECONFIG"]).read_text())
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
    url = f"{config['clusters'][0]['cluster']['server']}{path}?dryRun=All"
    request = Request(url, json.dumps(changes).encode(), headers, method="PATCH")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urlopen(request, context=trusting) as answer:
            return str(answer.status)
    except HTTPError as error:
        return str(json.loads(error.read())["message"])


@needs_1_36
def test_without_a_right_pods_run_and_the_log_says_which_one_is_missing(served: Cluster) -> None:
    node = served.nodes["n1"]
    served.kubectl("patch", "clusterrole", "nri-rdma", "--type=json", "-p", '[{"op": "remove", "path": "/rules/3"}]')
    make(served, template("without", claim_spec({"nic": {}})))
    start(served, claiming("without", {"rdma": "without"}))
    served.wait("the log", lambda: "resourceclaims/driver" in _said(node), 20)
    print(_said(node))
    rights = "patch and update of resourceclaims/status, and associated-node: with both of resourceclaims/driver"
    assert f'missing="{rights}"' in _said(node)
    delete(served, "without")
    account(served, "n1")


def _said(node: Node) -> str:
    """The last line of the log about a status that was not written."""
    lines = (node.machine.folder / "log/nri-rdma.log").read_text().splitlines()
    return next((it for it in reversed(lines) if "claim status is not written" in it), "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unsorted", '{"mode":"shared","devices":["uverbs"]}'),
        ("spaced", '{ "mode" : "shared",\n  "devices": ["uverbs"] }'),
        ("signs", '{"mode":"shared","devices":["uverbs"],"name":"a<b>&c"}'),
    ],
)
def test_a_claim_has_a_status_however_its_parameters_were_written(
    served: Cluster, tmp_path: Path, name: str, text: str
) -> None:
    """The API server compares those of the allocation as bytes, and a patch makes other ones of some. What kubectl
    sends has neither white space nor keys that are not sorted; what a program sends may."""
    asked = json.dumps(named(name, claim_spec({"nic": {}}, {"X": 1})), separators=(",", ":"))
    file = tmp_path / "claim.json"
    file.write_text(asked.replace('{"X":1}', text))
    served.kubectl("create", "--raw", PATH, "-f", str(file))
    served.kubectl("create", "-f", "-", given=using(name, name))
    claim = claim_named(served, name)
    if name == "signs":  # which no name may have
        await_ready(served, claim, "False", "PrepareFailed")
    else:
        served.wait(f"pod {name}", lambda: phase(served, name) == "Running", START_S)
        await_ready(served, claim, "True", "Attached")
    allocated = claim()["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"]
    assert allocated == json.loads(text)
    delete(served, name)
    served.kubectl("delete", "resourceclaim", name, "--timeout=30s")
