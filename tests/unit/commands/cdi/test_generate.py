"""The spec of a node's devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import Registry, SpecFile, resolve
from nri_rdma.cdi.spec import NodeType, Version
from nri_rdma.commands.cdi.generate import SpecAsks, of_pool, spec_of
from nri_rdma.decide.policy import Policy
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import UNLIMITED, Mode, RdmaLimits, Scope
from nri_rdma.model.selector import Selector
from nri_rdma.text.requests import read_requests
from tests.unit.model.hardware import eight, nic, node, umad, uverbs


def registry(of: Node) -> Registry:
    """What a runtime has of the node's spec."""
    spec = parse(encode(spec_of(of).spec), "nic.json")
    return resolve([SpecFile(file="nic.json", priority=0, spec=spec)])


def test_each_device_is_a_cdi_device_with_its_own_node_and_rdma_cm() -> None:
    devices = registry(eight()).devices
    assert list(devices) == [f"rdma.noderesource.dev/nic=mlx5_{number}" for number in range(8)]
    assert [it.path for it in devices["rdma.noderesource.dev/nic=mlx5_3"].nodes] == [
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs3",
    ]


def test_any_two_devices_have_nothing_in_common_but_the_edits_of_the_spec() -> None:
    spec = spec_of(eight()).spec
    paths = [it.path for device in spec.devices for it in device.edits.device_nodes]
    assert len(paths) == len(set(paths)) == 8
    assert not {"/dev/infiniband/rdma_cm"} & set(paths)
    assert {device.edits.env for device in spec.devices} == {()}


def test_numbers_and_modes_are_left_to_the_moment_of_injection() -> None:
    """A device that comes back from a pod has others."""
    for it in registry(eight()).devices.values():
        for char in it.nodes:
            assert (char.type, char.permissions) == (NodeType.CHARACTER, "rw")
            assert (char.major, char.minor, char.file_mode, char.uid, char.gid) == (None,) * 5


def test_nodes_that_manage_the_fabric_are_not_given() -> None:
    of = node((nic(0, chars=(uverbs(0), umad(0))),))
    assert [it.path for it in registry(of).devices["rdma.noderesource.dev/nic=mlx5_0"].nodes] == [
        "/dev/infiniband/rdma_cm",
        "/dev/infiniband/uverbs0",
    ]


def test_the_oldest_version_is_enough_and_a_digit_in_front_needs_a_later_one() -> None:
    assert spec_of(eight()).spec.version is Version.V0_3_0
    assert spec_of(node((replace(nic(0), name="0nic"),))).spec.version is Version.V0_5_0


def test_a_node_without_rdma_cm_has_a_spec_without() -> None:
    of = replace(eight(), rdma_cm=None)
    assert spec_of(of).spec.edits.is_empty
    assert len(registry(of).devices) == 8


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (nic(1, in_use=("eth1 carries a default route",)), "in use by the host: eth1 carries a default route"),
        (nic(1, chars=()), "it has no uverbs node (is ib_uverbs loaded?)"),
        (nic(1, chars=(umad(1),)), "it has no uverbs node (is ib_uverbs loaded?)"),
        (replace(nic(1), name="mlx5 1"), "CDI does not allow its name"),
        (replace(nic(1), name="mlx5_"), "CDI does not allow its name"),
    ],
)
def test_what_cannot_or_may_not_be_given_is_left_out_with_the_reason(device: object, why: str) -> None:
    assert isinstance(device, type(nic(1)))
    generated = spec_of(node((nic(0), device)))
    assert [it.name for it in generated.spec.devices] == ["mlx5_0"]
    assert generated.left_out == (f"{device.name} is left out: {why}.",)


def test_who_names_a_device_gets_it_alone_and_though_the_host_uses_it() -> None:
    of = node((nic(0), nic(1, in_use=("eth1 carries a default route",))))
    generated = spec_of(of, ["mlx5_1"])
    assert [it.name for it in generated.spec.devices] == ["mlx5_1"]
    assert generated.left_out == ()


# Of a pool

RAILS = Pool(name="rails", modes=(Mode.EXCLUSIVE,), select=(Selector(numa_node=(1,)),), where="FILE:1")
POOLS = {
    "rails": RAILS,
    "rest": Pool(name="rest", modes=(Mode.SHARED,), select=(Selector(numa_node=(0,)),)),
    "both": Pool(name="both", modes=(Mode.SHARED,), select=(Selector(device=("mlx5_5",)),)),
    "none": Pool(name="none", modes=(Mode.SHARED,), select=(Selector(vendor=("14e4",)),)),
    "end-": Pool(name="end-", modes=(Mode.SHARED,), where="FILE:9"),
}
POLICY = Policy(pools=POOLS)


def test_a_pools_devices_are_a_kind_of_their_own_and_contested_ones_are_not_among_them() -> None:
    policy = Policy(pools={name: POOLS[name] for name in ("rails", "rest", "both")})
    of, kind = of_pool(policy, eight(), "rails", None)
    spec = spec_of(of, kind=kind).spec
    assert str(spec.kind) == "rdma.noderesource.dev/nic-rails"
    assert [it.name for it in spec.devices] == ["mlx5_4", "mlx5_6", "mlx5_7"]
    assert spec.version is Version.V0_3_0


@pytest.mark.parametrize(
    ("name", "mode", "code"),
    [
        ("gold", None, ErrorCode.POOL_UNKNOWN),
        ("rails", Mode.SHARED, ErrorCode.POOL_MODE),
        ("none", None, ErrorCode.NOT_IN_POOL),
        ("end-", None, ErrorCode.POOL_UNKNOWN),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_the_next_step(name: str, mode: Mode | None, code: ErrorCode) -> None:
    with pytest.raises(PlacementError) as caught:
        of_pool(POLICY, eight(), name, mode)
    assert (caught.value.code, bool(caught.value.hint)) == (code, True)


def test_a_device_that_is_not_in_the_pool_is_refused_as_such() -> None:
    policy = Policy(pools={name: POOLS[name] for name in ("rails", "rest", "both")})
    with pytest.raises(PlacementError) as caught:
        of_pool(policy, eight(), "rails", None, ["mlx5_4", "mlx5_0"])
    assert (caught.value.code, caught.value.what) == (ErrorCode.NOT_IN_POOL, "pool rails does not have mlx5_0")
    assert "it has mlx5_4, mlx5_6, mlx5_7" in caught.value.hint


def test_nothing_is_asked_of_nri_rdma_unless_it_is_said() -> None:
    assert SpecAsks().text == ""
    assert all(not device.annotations for device in spec_of(eight()).spec.devices)


@given(
    st.builds(
        SpecAsks,
        mode=st.none() | st.sampled_from(Mode),
        memlock=st.none() | st.just("unlimited") | st.integers(1, 2**63 - 1),
        hca_handles=st.none() | st.integers(1, 2**31 - 1),
        hca_objects=st.none() | st.integers(1, 2**31 - 1),
    )
)
def test_what_a_device_asks_is_a_request_as_a_pods_annotation_has_it(asks: SpecAsks) -> None:
    read = read_requests(asks.text, "HERE", Scope(), own=True)
    if not asks.text:
        assert read == []
        return
    limits = RdmaLimits(hca_handles=asks.hca_handles, hca_objects=asks.hca_objects)
    memlock = UNLIMITED if asks.memlock == "unlimited" else asks.memlock
    (request,) = read
    assert (request.mode, request.memlock) == (asks.mode, memlock)
    assert request.limits == (limits if limits != RdmaLimits() else None)


def test_what_is_asked_stands_at_each_device_and_needs_cdi_0_6() -> None:
    annotations = (("rdma.noderesource.dev", SpecAsks(mode=Mode.EXCLUSIVE).text),)
    spec = parse(encode(spec_of(eight(), annotations=annotations).spec), "nic.json")
    assert spec.version is Version.V0_6_0
    assert [dict(device.annotations) for device in spec.devices] == [
        {"rdma.noderesource.dev": '{"mode": "exclusive"}'}
    ] * 8


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(PlacementError, match="the node has no RDMA device mlx5_9") as caught:
        spec_of(eight(), ["mlx5_0", "mlx5_9"])
    assert caught.value.code is ErrorCode.DEVICE_UNKNOWN


@pytest.mark.parametrize("of", [node(), node((nic(0, chars=()),))])
def test_a_node_with_nothing_to_give_is_refused(of: Node) -> None:
    with pytest.raises(PlacementError, match="no RDMA device can be given by CDI"):
        spec_of(of)
