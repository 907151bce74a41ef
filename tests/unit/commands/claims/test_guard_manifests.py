"""The admission policy that gives the guard resource; what the API server makes of it is in tests/cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_rdma.commands.claims.guard_manifests import guard_manifests
from tests.unit.commands.cli.program import nri_rdma

RESOURCE, PREFIX = "a.example/guard", "ask.example"
CLAIMS = '[pools.nics]\nmodes = ["exclusive"]\ndoor = "claims"\n'


def policy(*, has_claims: bool = False) -> dict[str, Any]:
    (made, binding) = guard_manifests(RESOURCE, PREFIX, has_claims=has_claims)
    assert binding["spec"]["policyName"] == made["metadata"]["name"]
    spec: dict[str, Any] = made["spec"]
    return spec


def test_it_asks_for_annotations_of_our_prefix_and_for_claims_only_where_a_pool_has_some() -> None:
    ((alone,), (both,)) = (policy(has_claims=it)["matchConditions"] for it in (False, True))
    assert "k == 'ask.example' || k.startsWith('ask.example/')" in alone["expression"]
    assert "resourceClaims" not in alone["expression"]
    assert both["expression"].startswith(f"{alone['expression']} || ")
    assert "resourceClaims" in both["expression"]


def test_it_adds_the_resource_as_a_text_to_containers_and_init_containers() -> None:
    (mutation,) = policy()["mutations"]
    words = mutation["applyConfiguration"]["expression"]
    assert words.count("limits: {'a.example/guard': '1'}") == 2
    assert "initContainers" in words
    assert "ephemeralContainers" not in words


def test_a_label_of_the_namespace_or_the_pod_leaves_it_out() -> None:
    constraints = policy()["matchConstraints"]
    for selector in ("namespaceSelector", "objectSelector"):
        (condition,) = constraints[selector]["matchExpressions"]
        assert condition == {"key": "ask.example/guard", "operator": "NotIn", "values": ["off"]}


@pytest.mark.parametrize("has_claims", [False, True])
def test_the_command_prints_it_with_and_without_pools_for_claims(tmp_path: Path, has_claims: bool) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'guard_resource = "{RESOURCE}"\n{CLAIMS if has_claims else ""}')
    printed = nri_rdma("claims", "manifests", "--config", file).stdout
    kinds = [it["kind"] for it in yaml.safe_load_all(printed)]
    assert kinds[-2:] == ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"]
    assert ("DeviceClass" in kinds) == has_claims
    assert "&id" not in printed


def test_without_resource_and_pools_the_command_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    ended = nri_rdma("claims", "manifests", "--config", tmp_path / "config.toml")
    assert ended.returncode == 2
    assert "has door = claims, and guard_resource is empty" in ended.stderr
