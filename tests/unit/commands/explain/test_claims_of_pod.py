"""A pod that asks by claims is told what they bring: how many devices, of which pool, to whom, aligned with what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias  # Any: JSON

import pytest

from tests.unit.commands.cli.program import PROJECT, nri_rdma

Explain: TypeAlias = Callable[..., tuple[str, Any]]
SNAPSHOT = PROJECT / "docs/examples/node.json"
POOLS = '[pools.nics]\nmodes = ["exclusive", "shared"]\ndoor = "claims"\n'
CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: rails}
spec: {selectors: [{cel: {expression: "device.driver == 'rdma.noderesource.dev'"}}]}
---
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu-nic}
spec:
  spec:
    devices:
      requests:
      - {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}
      - {name: nic, exactly: {deviceClassName: rails, count: 2}}
      constraints: [{requests: [gpu, nic], matchAttribute: resource.kubernetes.io/pcieRoot}]
---
"""
POD = """
kind: Pod
metadata: {name: t}
spec:
  resourceClaims: [{name: r, resourceClaimTemplateName: gpu-nic}]
  containers: [{name: main, resources: {claims: [{name: r}]}}, {name: side}]
"""


@pytest.fixture
def explained(tmp_path: Path) -> Explain:
    def explain(text: str, pools: str = POOLS, code: int = 0) -> tuple[str, Any]:
        (tmp_path / "c.toml").write_text(pools)
        manifest = tmp_path / "pod.yaml"
        manifest.write_text(text)
        arguments = ("explain", manifest, "--snapshot", SNAPSHOT, "--config", tmp_path / "c.toml")
        shown, document = nri_rdma(*arguments, columns=400), nri_rdma(*arguments, "-o", "json")
        assert (shown.returncode, document.returncode) == (code, code), shown.stdout
        return shown.stdout, json.loads(document.stdout)["pods"][0]

    return explain


def test_a_claim_of_ours_brings_devices_of_a_pool_and_the_scheduler_decides_which(explained: Explain) -> None:
    shown, document = explained(f"{CLASS}{TEMPLATE}{POD}")
    assert "asks for nothing" not in shown
    assert "Pod default/t: gets 2 devices by claim, and the scheduler decides which" in shown
    assert "Claim r (ResourceClaimTemplate gpu-nic) is for container main." in shown
    assert "Its request nic is for 2 devices of pool nics (mode exclusive)." in shown
    assert "mlx5_7 in pool nics, none of them held." in shown
    assert "Alignment: its devices have the same resource.kubernetes.io/pcieRoot, as those of request gpu." in shown
    assert "The containers find them in RDMA_DEVICES_R_NIC." in shown
    assert "  claim  r, which nri-rdma prepares\n  gets   what its claims bring" in shown
    (claim,) = document["claims"]
    assert (claim["is_ours"], claim["containers"], claim["count"]) == (True, ["main"], 2)


def test_a_container_that_names_one_request_of_a_claim_gets_its_devices_only(explained: Explain) -> None:
    two = TEMPLATE.replace("      - {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}\n", "").replace(
        "      constraints", "      - {name: disk, exactly: {deviceClassName: rails}}\n      constraints"
    )
    whole = POD.replace("[{name: r}]", "[{name: r, request: nic}]")
    each = whole.replace("{name: side}", "{name: side, resources: {claims: [{name: r, request: disk}]}}")
    shown, _ = explained(f"{CLASS}{two}{each}")
    assert "Container main finds them in RDMA_DEVICES_R_NIC." in shown
    assert "Container side finds them in RDMA_DEVICES_R_DISK." in shown
    shown, _ = explained(f"{CLASS}{two}{whole}")
    assert "No container finds them, because none names this request." in shown
    gpu_alone = POD.replace("[{name: r}]", "[{name: r, request: gpu}]")
    shown, _ = explained(f"{CLASS}{TEMPLATE}{gpu_alone}")
    assert "which nri-rdma prepares" not in shown


def test_a_claim_that_no_container_names_is_for_all_of_them(explained: Explain) -> None:
    shown, document = explained(
        f"{CLASS}{TEMPLATE}{POD.replace('{name: main, resources: {claims: [{name: r}]}}', '{name: main}')}"
    )
    assert "gets 2 devices by claim" in shown
    assert "is for every container, because no container names it (containers main, side)." in shown
    assert document["claims"][0]["containers"] == ["main", "side"]


@pytest.mark.parametrize(
    ("policy", "containers"), [("", ["init", "main", "side"]), (", restartPolicy: Always", ["init"])]
)
def test_a_claim_that_only_an_init_container_names_is_for_all_of_them(
    explained: Explain, policy: str, containers: list[str]
) -> None:
    """The kubelet reports sidecars, and no other init containers."""
    init = f"  initContainers: [{{name: init, resources: {{claims: [{{name: r}}]}}{policy}}}]\n"
    pod = POD.replace("{name: main, resources: {claims: [{name: r}]}}", "{name: main}")
    shown, document = explained(f"{CLASS}{TEMPLATE}{pod}{init}")
    assert document["claims"][0]["containers"] == containers
    assert ("no container names it but an init container" in shown) is (len(containers) > 1)


def test_a_class_with_the_name_of_a_pool_is_known_without_its_manifest(explained: Explain) -> None:
    shown, _ = explained(f"{TEMPLATE.replace('rails', 'nics')}{POD}")
    assert "Its request nic is for 2 devices of pool nics" in shown


def test_a_selector_that_names_a_pool_leaves_the_others_out(explained: Explain) -> None:
    other = "[pools.other]\nselect = {pci = '0000:19:00.0'}\nmodes = ['shared']\ndoor = 'claims'\n"
    two = POOLS + "exclude = {pci = '0000:19:00.0'}\n" + other
    chosen = CLASS.replace(
        "'rdma.noderesource.dev'",
        "'rdma.noderesource.dev' && device.attributes['rdma.noderesource.dev'].pool == 'other'",
    )
    shown, _ = explained(f"{chosen}{TEMPLATE}{POD}", two)
    assert "is for 2 devices of pool other (mode" in shown
    shown, _ = explained(f"{CLASS}{TEMPLATE}{POD}", two)
    assert "of pool nics (mode exclusive) or other (mode" in shown


def test_an_allocated_claim_is_told_with_its_devices(explained: Explain) -> None:
    claim = TEMPLATE.replace("ResourceClaimTemplate", "ResourceClaim").replace("  spec:\n    devices", "  devices")
    claim = claim.replace(
        "---",
        "status: {allocation: {devices: {results: [{driver: rdma.noderesource.dev, device: pci-0000-19-00-0}]}}}\n---",
    )
    shown, document = explained(f"{CLASS}{claim}{POD.replace('resourceClaimTemplateName', 'resourceClaimName')}")
    (name,) = document["claims"][0]["allocated"]
    assert f"Claim r (ResourceClaim gpu-nic) is allocated {name}, for container main." in shown
    assert "Pod default/t: gets 1 device by claim\n" in shown


def test_a_claim_that_the_manifest_lacks_is_said_to_be_missing(explained: Explain) -> None:
    shown, _ = explained(POD)
    assert "Pod default/t: asks for nothing itself, and none of its claims is known to be for devices" in shown
    assert "is not in the manifest, so that nothing is known of its devices: put it, and its device class" in shown


def test_claims_of_others_and_a_node_without_pools_for_claims_are_told_apart(explained: Explain) -> None:
    shown, _ = explained(f"{TEMPLATE}{POD}")
    assert "neither it nor a device class of the manifest names the driver rdma.noderesource.dev" in shown
    shown, _ = explained(f"{CLASS}{TEMPLATE}{POD}", "")
    assert "the node has no pool with door = claims, and the scheduler takes another node" in shown


def test_a_claim_that_is_refused_refuses_the_pod(explained: Explain) -> None:
    on_host = POD.replace("spec:\n", "spec:\n  hostNetwork: true\n")
    shown, _ = explained(f"{CLASS}{TEMPLATE}{on_host}", code=1)
    assert "Pod default/t: refused by its claim r, HOST-NETWORK" in shown


def test_a_request_with_alternatives_is_the_schedulers_to_decide(explained: Explain) -> None:
    of_two = TEMPLATE.replace(
        "{name: nic, exactly: {deviceClassName: rails, count: 2}}",
        "{name: nic, firstAvailable: [{name: fast, deviceClassName: rails}, {name: any, deviceClassName: others}]}",
    )
    shown, _ = explained(f"{CLASS}{of_two}{POD}")
    assert "its request nic has alternatives, and the scheduler decides which of them it gets." in shown
    assert "asks for nothing of a pool" not in shown
