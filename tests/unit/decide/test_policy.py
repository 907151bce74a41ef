"""What a node serves, to whom, and how a refusal says what to change."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface
from typing import Any  # Any: fields of requests and rules

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.policy import (
    Admitted,
    Asker,
    Offer,
    Policy,
    Pool,
    Rule,
    admit,
    default_policy,
    isolation_of,
    offer,
    policy_of,
)
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.device import CharKind, Node, RdmaNetns
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Isolation, Mode, PodRequest, RdmaLimits
from nri_rdma.model.rights import InterfaceRight
from nri_rdma.model.selector import Selector
from tests.unit.model.hardware import nic, node
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

EVERYTHING = Policy(
    pools={"default": Pool(name="default", modes=(Mode.EXCLUSIVE, Mode.SHARED))}, char_kinds=frozenset(CharKind)
)


def asking(
    *,
    pool: str = "default",
    mode: Mode | None = None,
    kinds: frozenset[CharKind] = frozenset({CharKind.UVERBS}),
    interface: InterfaceConfig | None = None,
    limits: RdmaLimits | None = None,
    isolation: Isolation = Isolation.SOFT,
) -> DeviceRequest:
    return DeviceRequest(
        name="0",
        where="HERE[0]",
        pool=pool,
        mode=mode,
        char_kinds=kinds,
        interface=interface or InterfaceConfig(),
        limits=limits,
        isolation=isolation,
    )


def admitted(
    request: DeviceRequest, policy: Policy = EVERYTHING, on: Node | None = None, *, host_network: bool = False
) -> Admitted:
    (item,) = admit(policy, on or node(), PodRequest(requests=(request,)), Asker(host_network=host_network))
    return item


def refusal(
    request: DeviceRequest, policy: Policy = EVERYTHING, on: Node | None = None, *, host_network: bool = False
) -> NriRdmaError:
    with pytest.raises(NriRdmaError) as caught:
        admitted(request, policy, on, host_network=host_network)
    assert caught.value.where.startswith("HERE[0]")
    assert caught.value.hint
    return caught.value


def test_a_request_without_a_mode_gets_the_pools_first() -> None:
    assert admitted(asking()).mode is Mode.EXCLUSIVE


def test_a_request_gets_the_mode_it_names() -> None:
    assert admitted(asking(mode=Mode.SHARED)).mode is Mode.SHARED


def test_every_request_is_admitted_in_order() -> None:
    requests = (asking(mode=Mode.SHARED), asking(mode=Mode.EXCLUSIVE))
    admitted_both = admit(EVERYTHING, node(), PodRequest(requests=requests), Asker())
    assert [item.request for item in admitted_both] == [*requests]


def test_the_default_pool_serves_shared_only() -> None:
    policy = default_policy(allow_exclusive=False)
    assert admitted(asking(), policy).mode is Mode.SHARED
    error = refusal(asking(mode=Mode.EXCLUSIVE), policy)
    assert error.code is ErrorCode.POOL_MODE
    assert "--allow-default-pool" in error.hint


def test_the_default_pool_serves_exclusive_when_it_was_allowed_and_asked_for() -> None:
    policy = default_policy(allow_exclusive=True)
    assert admitted(asking(mode=Mode.EXCLUSIVE), policy).mode is Mode.EXCLUSIVE
    assert admitted(asking(), policy).mode is Mode.SHARED


def test_where_the_kernel_cannot_share_a_request_without_a_mode_is_exclusive_if_that_is_served() -> None:
    hiding = replace(node(), rdma_netns=RdmaNetns.EXCLUSIVE)
    assert admitted(asking(), default_policy(allow_exclusive=True), hiding).mode is Mode.EXCLUSIVE
    assert refusal(asking(), default_policy(allow_exclusive=False), hiding).code is ErrorCode.RDMA_NETNS


def test_a_pools_author_may_put_exclusive_first() -> None:
    assert admitted(asking(), EXCLUSIVE_FIRST).mode is Mode.EXCLUSIVE


def test_configured_pools_take_the_place_of_the_default_one() -> None:
    policy = policy_of([Pool(name="rails", modes=(Mode.EXCLUSIVE,))], (), allow_default_pool=False)
    assert refusal(asking(), policy).code is ErrorCode.POOL_UNKNOWN
    assert admitted(asking(pool="rails"), policy).mode is Mode.EXCLUSIVE


def test_rules_without_pools_are_about_the_default_one() -> None:
    policy = policy_of((), (Rule(name="1", where="FILE:1", allow=False),), allow_default_pool=True)
    assert refusal(asking(), policy).code is ErrorCode.POLICY_DENIED


def test_an_unknown_pool_names_the_pools_there_are() -> None:
    pools = {name: Pool(name=name, modes=(Mode.SHARED,)) for name in ("slow", "fast")}
    error = refusal(asking(pool="fats"), Policy(pools=pools))
    assert (error.code, error.hint) == (ErrorCode.POOL_UNKNOWN, "ask for one of its pools: fast, slow")
    counted = "write {count: free} for free NICs of a pool; ask for one of its pools: fast, slow"
    assert refusal(asking(pool="free"), Policy(pools=pools)).hint == counted


def test_a_mode_that_another_pool_does_not_serve_tells_the_administrator_what_to_add() -> None:
    error = refusal(
        asking(pool="fast", mode=Mode.EXCLUSIVE), Policy(pools={"fast": Pool(name="fast", modes=(Mode.SHARED,))})
    )
    assert error.code is ErrorCode.POOL_MODE
    assert "adds exclusive to its modes" in error.hint


@pytest.mark.parametrize("kind", [CharKind.UMAD, CharKind.ISSM])
def test_devices_that_manage_the_fabric_need_the_policy(kind: CharKind) -> None:
    error = refusal(asking(kinds=frozenset({kind})), default_policy(allow_exclusive=True))
    assert error.code is ErrorCode.POLICY_DEVICES
    assert kind in error.what
    assert admitted(asking(kinds=frozenset({kind}))).request.char_kinds == {kind}


def test_a_pod_on_the_hosts_network_cannot_have_a_device_alone() -> None:
    refused = refusal(asking(), host_network=True)
    assert (refused.code, refused.hint[:21]) == (ErrorCode.HOST_NETWORK, "ask for mode: shared,")
    by_resource = refusal(replace(asking(), shares=("mlx5_0-0",)), host_network=True)
    assert by_resource.hint.startswith("ask for a resource whose pool has mode shared, or")  # it cannot say a mode


def test_a_pod_on_the_hosts_network_can_share_a_device() -> None:
    assert admitted(asking(mode=Mode.SHARED), host_network=True).mode is Mode.SHARED


@pytest.mark.parametrize(
    "interface",
    [
        InterfaceConfig(name="rdma0"),
        InterfaceConfig(mtu=9000),
        InterfaceConfig(addresses=((ip_interface("10.0.0.2/24"),),)),
    ],
)
def test_a_netdev_that_stays_on_the_host_is_not_configured(interface: InterfaceConfig) -> None:
    error = refusal(asking(mode=Mode.SHARED, interface=interface))
    assert isinstance(error, RequestError)
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, "HERE[0].interface")


@pytest.mark.parametrize("setting", [RdmaNetns.SHARED, RdmaNetns.NONE])
def test_hard_isolation_is_refused_where_the_kernel_hides_nothing(setting: RdmaNetns) -> None:
    error = refusal(asking(isolation=Isolation.HARD), on=node(rdma_netns=setting))
    assert (error.code, error.where) == (ErrorCode.RDMA_NETNS, "HERE[0].isolation")


def test_hard_isolation_is_served_where_the_kernel_hides_devices() -> None:
    assert admitted(asking(isolation=Isolation.HARD), on=node(rdma_netns=RdmaNetns.EXCLUSIVE)).mode is Mode.EXCLUSIVE


def test_what_is_shared_cannot_be_isolated() -> None:
    error = refusal(asking(mode=Mode.SHARED, isolation=Isolation.HARD))
    assert isinstance(error, RequestError)
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, "HERE[0].isolation")


def test_a_netdev_that_moves_is_configured() -> None:
    assert admitted(asking(interface=InterfaceConfig(mtu=9000))).mode is Mode.EXCLUSIVE


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("setting", [RdmaNetns.SHARED, RdmaNetns.NONE])
def test_a_kernel_that_shows_rdma_devices_everywhere_serves_both_modes(setting: RdmaNetns, mode: Mode) -> None:
    assert admitted(asking(mode=mode), on=node(rdma_netns=setting)).mode is mode


def test_a_kernel_that_keeps_rdma_devices_in_one_namespace_gives_them_alone_only() -> None:
    assert admitted(asking(mode=Mode.EXCLUSIVE), on=node(rdma_netns=RdmaNetns.EXCLUSIVE)).mode is Mode.EXCLUSIVE
    error = refusal(asking(mode=Mode.SHARED), on=node(rdma_netns=RdmaNetns.EXCLUSIVE))
    assert isinstance(error, PlacementError)
    assert error.code is ErrorCode.RDMA_NETNS
    assert "invisible" in error.what
    assert "rdma system set netns shared" in error.hint


def test_limits_need_the_rdma_controller() -> None:
    limited = asking(limits=RdmaLimits(hca_handles=2))
    assert admitted(limited, on=node(rdma_cgroup=True)).request.limits == RdmaLimits(hca_handles=2)
    error = refusal(limited, on=node(rdma_cgroup=False))
    assert (error.code, error.where) == (ErrorCode.LIMITS_UNSUPPORTED, "HERE[0].limits")


# Pools and rules

RAILS = Pool(name="rails", modes=(Mode.EXCLUSIVE, Mode.SHARED), where="FILE:3")
TRAINING = Asker(namespace="train-1")


def ruled(*rules: Rule, pool: Pool = RAILS) -> Policy:
    return Policy(pools={pool.name: pool}, rules=rules)


def rule(**fields: Any) -> Rule:
    return Rule(**{"name": "training", "where": "FILE:7", **fields})


def asked(policy: Policy, asker: Asker = TRAINING, on: Node | None = None, **fields: Any) -> Admitted | NriRdmaError:
    """What becomes of a request, as a value."""
    request = asking(pool="rails", **fields)
    try:
        return admit(policy, on or node(), PodRequest(requests=(request,)), asker)[0]
    except NriRdmaError as error:
        return error


def code_of(answer: Admitted | NriRdmaError) -> ErrorCode | None:
    return answer.code if isinstance(answer, NriRdmaError) else None


def limits_of(answer: Admitted | NriRdmaError) -> RdmaLimits | None:
    assert isinstance(answer, Admitted), answer
    return answer.request.limits


def test_without_rules_everybody_may_ask() -> None:
    assert code_of(asked(ruled())) is None


def test_where_there_are_rules_and_none_is_for_the_pod_it_is_refused() -> None:
    error = asked(ruled(rule(namespaces=("other",))))
    assert code_of(error) is ErrorCode.POLICY_DENIED
    assert str(error).startswith(
        "nri-rdma: POLICY-DENIED: no rule lets a pod of namespace train-1 ask pool rails, HERE"
    )


def test_a_namespace_that_no_kubernetes_would_take_is_printed_without_its_control_characters() -> None:
    error = asked(ruled(rule(namespaces=("other",))), Asker(namespace="a\nb\x1b[2J"))
    assert r"a pod of namespace 'a\nb\x1b[2J' ask pool rails" in str(error)
    assert str(error).isprintable()


def test_the_first_rule_that_is_for_the_pod_decides() -> None:
    no, yes = rule(name="no", namespaces=("train-*",), allow=False), rule(name="yes")
    error = asked(ruled(no, yes))
    assert code_of(error) is ErrorCode.POLICY_DENIED
    assert "rule no (FILE:7) refuses pool rails" in str(error)
    assert code_of(asked(ruled(yes, no))) is None
    assert code_of(asked(ruled(no, yes), Asker(namespace="web"))) is None


def test_a_rule_about_another_pool_says_nothing() -> None:
    assert code_of(asked(ruled(rule(pools=("storage",))))) is ErrorCode.POLICY_DENIED


def test_a_rule_narrows_the_modes_of_the_pool() -> None:
    policy = ruled(rule(modes=(Mode.SHARED,)))
    error = asked(policy, mode=Mode.EXCLUSIVE)
    assert code_of(error) is ErrorCode.POLICY_MODE
    assert "rule training (FILE:7) permits shared of pool rails, not exclusive" in str(error)
    assert "Next: ask for mode: shared, or" in str(error)
    alone = ruled(rule(modes=(Mode.SHARED,)), pool=replace(RAILS, modes=(Mode.EXCLUSIVE,)))
    assert "Next: ask for another pool, or" in str(asked(alone))


def test_a_request_without_a_mode_gets_the_pools_first_of_those_that_its_rule_permits() -> None:
    answer = asked(ruled(rule(modes=(Mode.SHARED,))))
    assert isinstance(answer, Admitted)
    assert answer.mode is Mode.SHARED


def test_a_rule_does_not_widen_what_the_pool_serves() -> None:
    pool = Pool(name="rails", modes=(Mode.SHARED,))
    policy = ruled(rule(modes=(Mode.EXCLUSIVE, Mode.SHARED)), pool=pool)
    assert code_of(asked(policy, mode=Mode.EXCLUSIVE)) is ErrorCode.POOL_MODE


def test_management_datagrams_are_for_pods_whose_rule_lists_them() -> None:
    kinds = frozenset({CharKind.UMAD})
    assert code_of(asked(ruled(), kinds=kinds)) is ErrorCode.POLICY_DEVICES
    assert "rule training (FILE:7)" in str(asked(ruled(rule()), kinds=kinds))
    assert code_of(asked(ruled(rule(char_kinds=frozenset(CharKind))), kinds=kinds)) is None


def test_a_rule_says_what_may_be_said_of_the_interface() -> None:
    interface = InterfaceConfig(name="rdma0", mtu=9000)
    error = asked(ruled(rule(interface=frozenset({InterfaceRight.NAME}))), interface=interface)
    assert code_of(error) is ErrorCode.POLICY_INTERFACE
    assert "does not permit interface.mtu, HERE[0].interface. Next: write only name" in str(error)
    assert (
        code_of(asked(ruled(rule(interface=frozenset({InterfaceRight.NAME, InterfaceRight.MTU}))), interface=interface))
        is None
    )
    assert code_of(asked(ruled(rule(interface=frozenset())))) is None
    told = str(asked(ruled(rule(interface=frozenset())), interface=interface))
    assert "leave interface.name and interface.mtu out" in told


@pytest.mark.parametrize("policy", ["no rule", "a rule without interface"])
def test_strangers_may_say_what_leads_no_packet_astray(policy: str) -> None:
    offered = ruled() if policy == "no rule" else ruled(rule())
    harmless = InterfaceConfig(name="rdma0", mtu=9000, arp_ignore=1, enable_ipv6=True, gso_max_size=65536)
    assert code_of(asked(offered, interface=harmless)) is None
    for field, value in {"macs": ("02:00:00:00:00:01",), "forwarding": True, "disables_ebpf": True}.items():
        error = asked(offered, interface=replace(harmless, **{field: value}))  # type: ignore[arg-type]  # one of each
        assert code_of(error) is ErrorCode.POLICY_INTERFACE, field
    granted = ruled(rule(interface=frozenset(InterfaceRight)))
    assert code_of(asked(granted, interface=replace(harmless, forwarding=True))) is None


@pytest.mark.parametrize("which", ["pool", "rule"])
def test_limits_above_the_most_are_refused(which: str) -> None:
    most = RdmaLimits(hca_handles=8)
    policy = ruled(rule(max_limits=most)) if which == "rule" else ruled(pool=replace(RAILS, max_limits=most))
    error = asked(policy, limits=RdmaLimits(hca_handles=9))
    assert isinstance(error, PlacementError)
    assert (error.code, error.where) == (ErrorCode.POLICY_LIMITS, "HERE[0].limits.hcaHandles")
    assert "permits up to 8 hcaHandles, not 9" in error.what
    assert limits_of(asked(policy, limits=RdmaLimits(hca_handles=8))) == RdmaLimits(hca_handles=8)


def test_who_asks_for_no_limits_gets_the_pools() -> None:
    pool = replace(RAILS, limits=RdmaLimits(hca_handles=4, hca_objects=100))
    assert limits_of(asked(ruled(pool=pool))) == RdmaLimits(hca_handles=4, hca_objects=100)
    assert limits_of(asked(ruled(pool=pool), limits=RdmaLimits(hca_handles=9))) == RdmaLimits(
        hca_handles=9, hca_objects=100
    )


def test_no_request_escapes_the_most_by_naming_no_limit() -> None:
    pool = replace(RAILS, limits=RdmaLimits(hca_objects=500), max_limits=RdmaLimits(hca_handles=8))
    policy = ruled(rule(max_limits=RdmaLimits(hca_objects=200)), pool=pool)
    assert limits_of(asked(policy)) == RdmaLimits(hca_handles=8, hca_objects=200)


def test_limits_that_the_pool_adds_need_the_rdma_controller_too() -> None:
    error = asked(ruled(pool=replace(RAILS, limits=RdmaLimits(hca_handles=4))), on=node(rdma_cgroup=False))
    assert isinstance(error, PlacementError)
    assert (error.code, error.where) == (ErrorCode.LIMITS_UNSUPPORTED, "HERE[0]")
    assert "ask for a pool without limits" in error.hint


def test_a_pool_that_requires_isolation_is_not_for_kernels_that_hide_nothing() -> None:
    policy = ruled(pool=replace(RAILS, modes=(Mode.EXCLUSIVE,), requires_isolation=True))
    assert code_of(asked(policy)) is ErrorCode.RDMA_NETNS
    answer = asked(policy, on=node(rdma_netns=RdmaNetns.EXCLUSIVE))
    assert isinstance(answer, Admitted)
    assert answer.request.isolation is Isolation.HARD


_LIMIT = st.none() | st.integers(1, 9)
_LIMITS = st.none() | st.builds(RdmaLimits, hca_handles=_LIMIT, hca_objects=_LIMIT).filter(
    lambda it: it != RdmaLimits()
)


@given(_LIMITS, _LIMITS, _LIMITS, _LIMITS)
def test_what_is_admitted_is_within_every_bound(
    asked_limits: RdmaLimits | None, default: RdmaLimits | None, most: RdmaLimits | None, by_rule: RdmaLimits | None
) -> None:
    policy = ruled(rule(max_limits=by_rule), pool=replace(RAILS, limits=default, max_limits=most))
    answer = asked(policy, limits=asked_limits)
    if isinstance(answer, NriRdmaError):
        assert answer.code is ErrorCode.POLICY_LIMITS
        return
    got = answer.request.limits or RdmaLimits()
    for bound in (most, by_rule):
        for field in ("hca_handles", "hca_objects"):
            limit = getattr(bound, field, None)
            assert limit is None or getattr(got, field) <= limit


# Which devices a pool has


def pool(name: str, *selectors: Selector, exclude: tuple[Selector, ...] = ()) -> Pool:
    return Pool(name=name, modes=(Mode.SHARED,), select=selectors, exclude=exclude)


def offered(*pools: Pool, on: Node) -> Offer:
    return offer(Policy(pools={item.name: item for item in pools}), on)


def named(*numbers: int) -> Selector:
    return Selector(device=tuple(f"mlx5_{number}" for number in numbers))


def has(it: Offer, name: str) -> list[str]:
    return [device.name for device in it.by_pool[name]]


THREE = node(tuple(nic(number) for number in range(3)))


def test_a_pool_without_selectors_has_every_device() -> None:
    assert has(offered(pool("all"), on=THREE), "all") == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_a_pool_has_what_any_of_its_selectors_takes_and_none_excludes() -> None:
    it = offered(pool("a", named(0, 1), named(2), exclude=(named(1),)), on=THREE)
    assert has(it, "a") == ["mlx5_0", "mlx5_2"]


def test_a_device_that_two_pools_select_is_in_neither() -> None:
    it = offered(pool("a", named(0, 1)), pool("b", named(1, 2)), on=THREE)
    assert (has(it, "a"), has(it, "b")) == (["mlx5_0"], ["mlx5_2"])
    assert it.contested == {nic(1).id: ("a", "b")}


def test_an_excluded_device_does_not_come_back_while_its_netdev_has_another_name() -> None:
    away = node((nic(0, has_netdev=False), nic(1)))
    assert has(offered(pool("a", exclude=(Selector(netdev=("eth0",)),)), on=away), "a") == ["mlx5_1"]


def test_a_device_knows_its_pool() -> None:
    it = offered(pool("a", named(0)), pool("b", named(1)), on=THREE)
    assert [it.home_of(device) for device in THREE.devices] == ["a", "b", ""]


@given(st.lists(st.sets(st.integers(0, 4)), max_size=4))
def test_no_device_is_in_two_pools(choices: list[set[int]]) -> None:
    on = node(tuple(nic(number) for number in range(5)))
    pools = [pool(str(index), named(*numbers) if numbers else named(9)) for index, numbers in enumerate(choices)]
    it = offered(*pools, on=on)
    placed = [device for devices in it.by_pool.values() for device in devices]
    assert len(placed) == len(set(placed))
    assert not {device.id for device in placed} & set(it.contested)


@pytest.mark.parametrize(
    ("asker", "who"),
    [
        (Asker(namespace="ml"), "a pod of namespace ml"),
        (Asker(namespace="ml", runtime_handler="crun"), "a pod of namespace ml with runtime handler crun"),
        (Asker(), "a pod of namespace unknown"),
        (Asker(namespace="a\nb"), "a pod of namespace 'a\\nb'"),
    ],
)
def test_a_refusal_by_the_rules_says_what_they_may_judge_by(asker: Asker, who: str) -> None:
    web = Rule(name="web", where="FILE:1", namespaces=("web",))
    nobody = Rule(name="nobody", where="FILE:2", allow=False)
    for rule, text in ((web, f"no rule lets {who} ask pool default"), (nobody, f"refuses pool default to {who}")):
        policy = policy_of((), (rule,), allow_default_pool=True)
        with pytest.raises(PlacementError) as caught:
            admit(policy, node(), PodRequest(requests=(asking(),)), asker)
        assert text in caught.value.what


@pytest.mark.parametrize(
    ("rdma_netns", "mode", "isolation"),
    [
        (RdmaNetns.EXCLUSIVE, Mode.EXCLUSIVE, Isolation.HARD),
        (RdmaNetns.SHARED, Mode.EXCLUSIVE, Isolation.SOFT),
        (RdmaNetns.NONE, Mode.EXCLUSIVE, Isolation.SOFT),
        (RdmaNetns.EXCLUSIVE, Mode.SHARED, None),
    ],
)
def test_isolation_is_hard_where_the_kernel_hides_what_a_pod_has_alone(
    rdma_netns: RdmaNetns, mode: Mode, isolation: Isolation | None
) -> None:
    assert isolation_of(rdma_netns, mode) is isolation


def test_devices_that_a_node_without_rules_does_not_give_are_refused_as_that() -> None:
    policy = policy_of((), (), allow_default_pool=True)
    error = refusal(asking(kinds=frozenset({CharKind.UMAD})), policy)
    assert error.code is ErrorCode.POLICY_DEVICES
    assert error.what == "without a rule for them pods may not have umad devices on this node"


def test_limits_of_a_pool_that_the_node_cannot_keep_are_avoided_by_another_pool() -> None:
    pool = Pool(name="default", modes=(Mode.EXCLUSIVE,), limits=RdmaLimits(hca_handles=2))
    on = node(rdma_cgroup=False)
    of_pool = refusal(asking(), Policy(pools={"default": pool}, char_kinds=frozenset(CharKind)), on)
    own = refusal(asking(limits=RdmaLimits(hca_handles=2)), on=on)
    assert (of_pool.code, own.code) == (ErrorCode.LIMITS_UNSUPPORTED, ErrorCode.LIMITS_UNSUPPORTED)
    assert (of_pool.where, own.where) == ("HERE[0]", "HERE[0].limits")
    assert of_pool.hint.startswith("ask for a pool without limits, or ")
    assert own.hint.startswith("remove limits, or ")
