"""What a node serves, to whom, and how a refusal says what to change."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.device import CharKind, Node, RdmaNetns
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Isolation, Mode, PodRequest, RdmaLimits
from nri_rdma.policy import Admitted, Policy, Pool, admit, default_policy
from tests.unit.model.hardware import node

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
    (item,) = admit(policy, on or node(), PodRequest(requests=(request,)), host_network)
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
    admitted_both = admit(EVERYTHING, node(), PodRequest(requests=requests), host_network=False)
    assert [item.request for item in admitted_both] == [*requests]


def test_the_default_pool_serves_shared_only() -> None:
    policy = default_policy(allow_exclusive=False)
    assert admitted(asking(), policy).mode is Mode.SHARED
    error = refusal(asking(mode=Mode.EXCLUSIVE), policy)
    assert error.code is ErrorCode.POOL_MODE
    assert "--allow-default-pool" in error.hint


def test_the_default_pool_serves_exclusive_when_it_was_allowed() -> None:
    assert admitted(asking(), default_policy(allow_exclusive=True)).mode is Mode.EXCLUSIVE


def test_an_unknown_pool_names_the_pools_there_are() -> None:
    pools = {name: Pool(name=name, modes=(Mode.SHARED,)) for name in ("slow", "fast")}
    error = refusal(asking(pool="fats"), Policy(pools=pools))
    assert (error.code, error.hint) == (ErrorCode.POOL_UNKNOWN, "ask for one of its pools: fast, slow")


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
    assert refusal(asking(), host_network=True).code is ErrorCode.HOST_NETWORK


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
