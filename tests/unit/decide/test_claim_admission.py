"""A claim's rights and words: what its class says is trusted, what it says itself is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nri_rdma.decide.claim_admission import AdmittedClaim, admit_claim, holder_of
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import Policy, admit, policy_of
from nri_rdma.errors import NriRdmaError, PlacementError
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.pool import Asker, Pool, PoolDoor, Rule
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest, RdmaLimits, Use
from nri_rdma.model.rights import InterfaceRight
from nri_rdma.text.requests import read_granted
from tests.unit.model.hardware import eight

RAILS = Pool(name="rails", modes=(Mode.SHARED, Mode.EXCLUSIVE), door=PoolDoor.CLAIMS)


def request(
    from_class: dict[str, Any] | None = None,
    from_claim: dict[str, Any] | None = None,
    name: str = "nic",
    is_admin: bool = False,
) -> ClaimRequest:
    return ClaimRequest(
        name=name,
        devices=("pci-a",),
        pool="node-a",
        parameters={**(from_class or {}), **(from_claim or {})},
        from_claim=from_claim or {},
        is_admin=is_admin,
    )


def claim(*requests: ClaimRequest, namespace: str = "team", label: str = "rails") -> Claim:
    return Claim(namespace=namespace, name="rails-x7k", uid="u1", label=label, requests=requests)


def policy(*rules: Rule, pools: tuple[Pool, ...] = (RAILS,)) -> Policy:
    return policy_of(pools, rules, allow_default_pool=False)


def admitted(
    asked: ClaimRequest, of: Policy | None = None, namespace: str = "team", label: str = "rails", count: int = 1
) -> AdmittedClaim:
    on = eight()
    whose = claim(asked, namespace=namespace, label=label)
    return admit_claim(of or policy(), on, whose, asked, on.devices[:count])


def refusal(asked: ClaimRequest, of: Policy | None = None, namespace: str = "team") -> str:
    with pytest.raises(NriRdmaError) as caught:
        admitted(asked, of, namespace)
    return str(caught.value)


def test_the_text_has_the_parameters_the_mode_and_a_name_of_claim_and_request() -> None:
    told = admitted(request({"interface": {"mtu": 9000}}, {"mode": "exclusive"}, name="req/sub"))
    assert json.loads(told.text) == {"name": "rails-req", "mode": "exclusive", "interface": {"mtu": 9000}}
    assert (told.mode, told.pool, [it.name for it in told.devices]) == (Mode.EXCLUSIVE, "rails", ["mlx5_0"])
    assert json.loads(admitted(request()).text)["mode"] == "shared"


def test_a_claim_says_what_its_devices_are_for() -> None:
    told = admitted(request(from_claim={"use": "storage"}))
    assert read_granted(told.text, "CDI device", "claim", 1).use is Use.STORAGE


@pytest.mark.parametrize("namespace", ["team", "other"])
def test_what_a_claim_says_needs_the_rights_of_its_namespace_and_what_its_class_says_does_not(namespace: str) -> None:
    rules = policy(
        Rule(name="trusted", where="rules[0]", namespaces=("trusted",)),
        Rule(name="shared", where="rules[1]", modes=(Mode.SHARED,)),
    )
    exclusive = {"mode": "exclusive"}
    assert "claim " + namespace in refusal(request(from_claim=exclusive), rules, namespace)
    assert admitted(request(from_class=exclusive), rules, namespace).mode is Mode.EXCLUSIVE
    assert admitted(request(from_claim=exclusive), rules, "trusted").mode is Mode.EXCLUSIVE


def test_a_rule_of_labels_or_a_handler_applies_to_no_claim_and_a_refusal_says_so() -> None:
    for rule in (
        Rule(name="r", where="w", pod_labels=(("a", ("b",)),)),
        Rule(name="r", where="w", runtime_handlers=("runc",)),
    ):
        told = refusal(request(), policy(rule))
        assert "no rule lets a claim of namespace team ask pool rails" in told
        assert "one without podLabels and runtimeHandlers, because a claim has only a namespace" in told


def test_a_right_over_the_network_is_the_namespaces_for_a_claim_and_the_administrators_for_a_class() -> None:
    routes = {"routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.1"}]}
    of_network = frozenset({InterfaceRight.ROUTES})
    rules = policy(
        Rule(name="trusted", where="rules[0]", namespaces=("trusted",), interface=of_network),
        Rule(name="others", where="rules[1]"),
    )
    whole = {"mode": "exclusive", **routes}
    assert "does not permit routes" in refusal(request(from_claim=whole), rules, "team")
    for told in (
        admitted(request(from_claim=whole), rules, "trusted"),
        admitted(request(from_class=whole), rules, "team"),
        admitted(request(from_class=whole)),
    ):
        assert json.loads(told.text)["routes"] == routes["routes"]


@pytest.mark.parametrize(
    ("of_class", "of_claim"),
    [
        ({"mode": "exclusive"}, {"interface": {"name": "rail0"}}),
        ({"mode": "exclusive"}, {"interface": {"mtu": 1280}}),
        ({"mode": "exclusive", "interface": {"addresses": ["10.0.0.2/24"]}}, {"interface": {"mtu": 9000}}),
        ({"mode": "shared"}, {"mode": "exclusive", "interface": {"name": "rail0"}}),
        ({"interface": {"name": "rail0"}}, {"mode": "exclusive"}),
    ],
)
def test_what_a_claim_says_is_judged_in_the_mode_that_its_class_gives(
    of_class: dict[str, Any], of_claim: dict[str, Any]
) -> None:
    """The pool's first mode is shared, in which the claim could say nothing of a netdev."""
    told = admitted(request(of_class, of_claim))
    assert told.mode is Mode.EXCLUSIVE
    assert json.loads(told.text)["interface"].items() >= (of_claim.get("interface") or of_class["interface"]).items()


def test_what_only_goes_with_what_the_class_says_is_not_refused_for_itself() -> None:
    """Which of two devices a route is for is known by their addresses."""
    of_class = {"mode": "exclusive", "interface": {"addresses": [["10.0.0.2/24"], ["10.1.0.2/24"]]}}
    of_claim = {"routes": [{"destination": "10.9.0.0/16", "gateway": "10.1.0.1"}]}
    rules = policy(Rule(name="all", where="rules[0]", interface=frozenset({InterfaceRight.ROUTES})))
    told = admitted(request(of_class, of_claim), rules, count=2)
    assert json.loads(told.text)["routes"] == of_claim["routes"]


@pytest.mark.parametrize(
    ("of_class", "of_claim", "words"),
    [
        ({"mode": "shared"}, {"interface": {"name": "rail0"}}, "in mode shared the netdev stays on the host"),
        ({"interface": {"name": "rail0"}}, {"mode": "shared"}, "in mode shared the netdev stays on the host"),
        ({"mode": "shared"}, {"isolation": "hard"}, "cannot be hidden"),
        ({"mode": "exclusive", "interface": {"addresses": ["fd00::2/64"]}}, {"interface": {"mtu": 1000}}, "too small"),
    ],
)
def test_what_does_not_go_together_is_refused_whoever_said_which_part(
    of_class: dict[str, Any], of_claim: dict[str, Any], words: str
) -> None:
    whole = dict(of_class)
    for key, value in of_claim.items():
        whole[key] = {**whole[key], **value} if isinstance(value, dict) and key in whole else value
    told = refusal(replace(request(of_class, of_claim), parameters=whole))
    assert words in told
    assert "claim team/rails-x7k, request nic, parameters" in told


def test_where_nobody_names_a_mode_it_is_the_first_that_the_namespace_may_have() -> None:
    both = Pool(name="rails", modes=(Mode.EXCLUSIVE, Mode.SHARED), door=PoolDoor.CLAIMS)
    rules = policy(Rule(name="shared", where="rules[0]", modes=(Mode.SHARED,)), pools=(both,))
    assert admitted(request(), rules).mode is Mode.SHARED
    assert admitted(request(), policy(pools=(both,))).mode is Mode.EXCLUSIVE


def test_a_rule_bounds_the_limits_of_a_claim_that_asks_for_none() -> None:
    rules = policy(Rule(name="few", where="rules[0]", max_limits=RdmaLimits(hca_handles=4)))
    assert json.loads(admitted(request(), rules).text)["limits"] == {"hcaHandles": 4}
    asked = {"limits": {"hcaHandles": 9}}
    assert "permits up to 4 hcaHandles, not 9" in refusal(request(from_claim=asked), rules)
    assert json.loads(admitted(request(from_class=asked), rules).text)["limits"] == {"hcaHandles": 9}


def test_a_namespace_that_may_have_nothing_of_the_pool_gets_no_device_by_a_class_either() -> None:
    nobody = Rule(name="nobody", where="rules[0]", namespaces=("out",), allow=False)
    rules = policy(nobody, Rule(name="all", where="rules[1]"))
    assert "POLICY-DENIED" in refusal(request({"mode": "shared"}), rules, "out")
    assert admitted(request({"mode": "shared"}), rules, "team").mode is Mode.SHARED


def test_admin_access_gives_device_nodes_in_mode_shared_whatever_modes_pool_rule_and_class_have() -> None:
    of_class = {"mode": "exclusive", "interface": {"mtu": 9000}, "memlock": "unlimited"}
    alone = Pool(name="rails", modes=(Mode.EXCLUSIVE,), door=PoolDoor.CLAIMS, requires_isolation=True)
    rules = policy(Rule(name="all", where="rules[0]", modes=(Mode.EXCLUSIVE,)), pools=(alone,))
    told = admitted(request(of_class, is_admin=True), rules)
    assert told.mode is Mode.SHARED
    wanted = {"name": "rails-nic", "mode": "shared", "memlock": "unlimited", "adminAccess": True}
    assert json.loads(told.text) == wanted
    assert "adminAccess" not in json.loads(admitted(request(of_class)).text)
    looks_on = read_granted(told.text, "spec", "nic", 1)
    assert (looks_on.admin_access, looks_on.mode) == (True, Mode.SHARED)


@pytest.mark.parametrize(
    "said", [{"mode": "exclusive"}, {"interface": {"mtu": 9000}}, {"isolation": "hard"}, {"mood": "x"}]
)
def test_with_admin_access_a_claim_that_says_more_than_of_nodes_is_refused_with_the_key(said: dict[str, Any]) -> None:
    (key,) = said
    told = refusal(request(from_claim=said, is_admin=True))
    assert f"{key} does not go with adminAccess" in told
    assert f"claim team/rails-x7k, request nic, parameters.{key}" in told
    assert admitted(request(from_claim={"mode": "shared", "name": "eyes"}, is_admin=True)).mode is Mode.SHARED


def test_admin_access_needs_the_rights_over_nodes_and_pools_that_others_need() -> None:
    asked = request(from_claim={"devices": ["umad"]}, is_admin=True)
    assert "umad" in refusal(asked)
    assert "POLICY-DENIED" in refusal(request(is_admin=True), policy(Rule(name="no", where="rules[0]", allow=False)))


def test_who_looks_on_is_in_nobodys_way() -> None:
    device = eight().devices[0]
    looks_on = {device.id: frozenset({Holding(owner="mon/eyes", mode=Mode.SHARED, looks_on=True)})}
    assert holder_of((device,), looks_on, Mode.EXCLUSIVE) == ""
    assert holder_of((device,), looks_on, Mode.SHARED) == ""


def test_a_device_that_no_pool_of_claims_has_is_refused() -> None:
    annotations = Pool(name="rails", modes=(Mode.SHARED,))
    told = refusal(request(), policy(pools=(annotations,)))
    assert "NOT-IN-POOL: no pool with door = claims has mlx5_0" in told


def test_a_key_that_nobody_knows_is_refused_with_the_claim() -> None:
    told = refusal(request(from_claim={"mood": "exclusive"}))
    assert "mood" in told
    assert "claim team/rails-x7k, request nic" in told


def test_the_isolation_that_a_pool_requires_is_in_the_text() -> None:
    alone = Pool(name="rails", modes=(Mode.EXCLUSIVE,), door=PoolDoor.CLAIMS, requires_isolation=True)
    asked, on = request(), replace(eight(), rdma_netns=RdmaNetns.EXCLUSIVE)
    told = admit_claim(policy(pools=(alone,)), on, claim(asked), asked, on.devices[:1])
    assert json.loads(told.text)["isolation"] == "hard"
    assert "isolation" not in json.loads(admitted(request()).text)


def test_the_limits_of_the_pool_are_in_the_text() -> None:
    limited = Pool(
        name="rails", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS, limits=RdmaLimits(hca_handles=8, hca_objects=None)
    )
    assert json.loads(admitted(request(), policy(pools=(limited,))).text)["limits"] == {"hcaHandles": 8}


@pytest.mark.parametrize("label", ["rails.of.team", "r" * 253, "x" * 62 + "-y"])
def test_the_text_of_a_claim_with_any_name_can_be_read_again(label: str) -> None:
    told = admitted(request(), label=label)
    name = json.loads(told.text)["name"]
    again = admitted(request(from_claim={"name": name}))  # what the engine does with it later
    assert json.loads(again.text)["name"] == name


def test_who_holds_a_device_is_said_and_only_when_it_is_in_the_way() -> None:
    devices = eight().devices[:2]
    taken = {devices[1].id: frozenset({Holding(owner="ns/old", mode=Mode.SHARED)})}
    assert holder_of(devices, taken, Mode.EXCLUSIVE) == "mlx5_1 is still held by ns/old"
    assert holder_of(devices, taken, Mode.SHARED) == ""
    assert holder_of(devices[:1], taken, Mode.EXCLUSIVE) == ""


def test_only_a_claim_may_ask_a_pool_of_claims() -> None:
    on = eight()
    asked = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.SHARED, pool="rails")
    with pytest.raises(PlacementError, match="POOL-DOOR: pool rails is asked by a resource claim, not by an") as caught:
        admit(policy(), on, PodRequest(requests=(asked,)), Asker(namespace="team"))
    assert "write a ResourceClaim for a DeviceClass of the pool, or ask for another pool" in str(caught.value)
    of_claim = replace(asked, cdi_device="rails")
    (told,) = admit(policy(), on, PodRequest(requests=(of_claim,)), Asker(namespace="team"))
    assert told.mode is Mode.SHARED


def test_a_cdi_device_opens_no_pool_of_a_resource() -> None:
    hcas = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=4)
    asked = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.SHARED, pool="hcas", cdi_device="hcas")
    with pytest.raises(PlacementError, match="POOL-DOOR: pool hcas is asked by the resource rdma/hca"):
        admit(policy(pools=(hcas,)), eight(), PodRequest(requests=(asked,)), Asker(namespace="team"))


@pytest.mark.parametrize(
    ("of_class", "of_claim", "given"),
    [
        ({}, {}, {"hcaHandles": 10, "hcaObjects": 100}),
        ({}, {"hcaHandles": 10}, {"hcaHandles": 10, "hcaObjects": 100}),
        ({}, {"hcaObjects": 7}, {"hcaHandles": 10, "hcaObjects": 7}),
        ({"hcaHandles": 40}, {}, {"hcaHandles": 40, "hcaObjects": 100}),
        ({"hcaHandles": 40}, {"hcaObjects": 7}, {"hcaHandles": 40, "hcaObjects": 7}),
        ({"hcaHandles": 40, "hcaObjects": 400}, {"hcaHandles": 3}, {"hcaHandles": 3, "hcaObjects": 400}),
    ],
)
def test_a_limit_that_neither_class_nor_claim_names_is_the_rules_most_also_beside_one_that_is_named(
    of_class: dict[str, int], of_claim: dict[str, int], given: dict[str, int]
) -> None:
    most = RdmaLimits(hca_handles=10, hca_objects=100)
    whole = {"limits": of_class | of_claim} if of_class or of_claim else {}
    asked = replace(request(), parameters=whole, from_claim={"limits": of_claim} if of_claim else {})
    told = admitted(asked, policy(Rule(name="bounded", where="rules[0]", max_limits=most)))
    assert json.loads(told.text)["limits"] == given


def test_a_claims_limit_above_the_rules_most_is_refused_whatever_its_class_says() -> None:
    rules = policy(Rule(name="bounded", where="rules[0]", max_limits=RdmaLimits(hca_handles=10, hca_objects=100)))
    asked = replace(
        request(),
        parameters={"limits": {"hcaHandles": 11, "hcaObjects": 400}},
        from_claim={"limits": {"hcaHandles": 11}},
    )
    assert "POLICY-LIMITS" in refusal(asked, rules)
