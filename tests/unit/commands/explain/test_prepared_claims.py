"""What is said of a claim's parameters is what its preparing decides: those of the class, the claim's over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_rdma.commands.explain.prepared_claims import ExplainedClaim, claim_lines, explain_claims
from nri_rdma.decide.policy import policy_of
from nri_rdma.model.pool import Pool, PoolDoor, Rule
from nri_rdma.model.request import Mode
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.model.hardware import eight
from tests.unit.rigs.inside_daemon import InsideDaemon

NICS = Pool(name="nics", modes=(Mode.SHARED, Mode.EXCLUSIVE), door=PoolDoor.CLAIMS)
CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nics}
spec:
  config:
  - opaque: {driver: rdma.noderesource.dev, parameters: {mode: exclusive, memlock: unlimited}}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: rail, namespace: team}
spec:
  spec:
    devices:
      requests:
      - {name: a, exactly: {deviceClassName: nics}}
      - {name: b, exactly: {deviceClassName: nics, adminAccess: true}}
      config:
      - requests: [a]
        opaque: {driver: rdma.noderesource.dev, parameters: {interface: {name: rail0}}}
"""


def explained(*texts: str, rules: tuple[Rule, ...] = (), pools: tuple[Pool, ...] = (NICS,)) -> list[ExplainedClaim]:
    policy = policy_of(pools, rules, allow_default_pool=False)
    return list(explain_claims([yaml.safe_load(it) for it in texts], eight(), policy))


def test_class_and_claim_are_told_as_one_for_each_request() -> None:
    first, second = explained(TEMPLATE, CLASS)
    interface: dict[str, Any] = {"interface": {"name": "rail0"}}
    assert first.parameters == {"mode": "exclusive", "memlock": "unlimited", **interface}
    assert second.parameters == {"mode": "shared", "memlock": "unlimited", "adminAccess": True}
    assert [(it.claim, it.request, it.pool, it.lacks_class) for it in (first, second)] == [
        ("team/rail", "a", "nics", False),
        ("team/rail", "b", "nics", False),
    ]


def test_without_the_class_the_claim_is_judged_alone_and_that_is_said() -> None:
    told, _ = explained(TEMPLATE)
    assert told.lacks_class
    assert told.refusal is not None
    (line,) = claim_lines([told])
    assert line.startswith(
        "Claim template team/rail, request a of class nics, which the manifest has not, from pool nics is refused when"
        " it is prepared: nri-rdma: "
    )
    assert "in mode shared the netdev stays on the host" in line


@pytest.mark.parametrize("of_file", [(CLASS,), ()])
def test_a_config_that_names_no_request_does_not_make_a_gpu_a_device_of_ours(of_file: tuple[str, ...]) -> None:
    claim = TEMPLATE.replace("name: b, exactly: {deviceClassName: nics, adminAccess: true}", OF_GPU)
    told = explained(claim.replace("requests: [a]\n        ", ""), *of_file)
    assert [it.request for it in told] == ["a"]


OF_GPU = "name: gpu, exactly: {deviceClassName: gpu.example.com}"
POD = """
kind: Pod
metadata: {name: one, namespace: team}
spec: {hostNetwork: true, resourceClaims: [{name: nic, resourceClaimTemplateName: rail}], containers: [{name: main}]}
"""


def test_a_claim_of_a_pod_on_the_hosts_network_is_refused_when_that_starts_unless_it_only_shares() -> None:
    alone, looks_on = explained(TEMPLATE, CLASS, POD)
    assert (alone.refusal is not None, looks_on.refusal) == (True, None)
    told = next(claim_lines([alone]))
    assert (
        "is refused when its pod starts: nri-rdma: HOST-NETWORK: mode exclusive moves the netdev into the pod" in told
    )
    assert "until then its claim keeps the device from others" in told


def test_a_rule_of_the_claims_namespace_counts_for_what_the_claim_says_only() -> None:
    def refusals(*namespaces: str) -> list[bool]:
        rules = (Rule(name="theirs", where="rules[0]", namespaces=namespaces, interface=frozenset()),)
        return [it.refusal is not None for it in explained(TEMPLATE, CLASS, rules=rules)]

    assert refusals("team") == [True, False]
    assert refusals("other") == [True, True]


def test_each_pool_of_claims_is_told_and_no_other_one() -> None:
    alone = Pool(name="alone", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)
    annotations = Pool(name="annotations", modes=(Mode.SHARED,))
    told = explained(TEMPLATE, CLASS, pools=(NICS, alone, annotations))
    assert [(it.request, it.pool, it.refusal is None) for it in told] == [
        ("a", "nics", True),
        ("a", "alone", False),
        ("b", "nics", True),
        ("b", "alone", True),
    ]


@pytest.mark.parametrize("text", ["1", "{kind: ResourceClaim}", "{kind: DeviceClass, apiVersion: resource.k8s.io/v1}"])
def test_what_is_no_claim_with_parameters_is_passed_over(text: str) -> None:
    assert explained(text) == []


def test_explain_shows_claims_and_ends_with_1_where_one_is_refused(daemon: InsideDaemon, tmp_path: Path) -> None:
    daemon.engine.offering.policy = policy_of((NICS,), (), allow_default_pool=False)
    manifest, state = tmp_path / "claims.yaml", ("--state-dir", daemon.settings.state_dir)
    manifest.write_text(f"{TEMPLATE}\n---\n{CLASS}")
    done = nri_rdma("explain", manifest, *state, columns=400)
    line = 'Claim template team/rail, request a of class nics from pool nics is prepared with {"mode"'
    assert (done.returncode, line in done.stdout) == (0, True)
    manifest.write_text(TEMPLATE)
    done = nri_rdma("explain", manifest, *state, "-o", "json")
    assert done.returncode == 1
    told, _ = json.loads(done.stdout)["claims"]
    assert (told["parameters"], told["lacks_class"], told["refusal"]["code"]) == (None, True, "ANNOTATION-VALUE")
