"""The spec of a node's devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.generate import spec_of
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import Registry, SpecFile, resolve
from nri_rdma.cdi.spec import NodeType, Version
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import Node
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
        (nic(1, chars=()), "it has no uverbs node, is ib_uverbs loaded"),
        (nic(1, chars=(umad(1),)), "it has no uverbs node, is ib_uverbs loaded"),
        (replace(nic(1), name="mlx5 1"), "CDI has no such names"),
        (replace(nic(1), name="mlx5_"), "CDI has no such names"),
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


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(PlacementError, match="the node has no RDMA device mlx5_9") as caught:
        spec_of(eight(), ["mlx5_0", "mlx5_9"])
    assert caught.value.code is ErrorCode.DEVICE_UNKNOWN


@pytest.mark.parametrize("of", [node(), node((nic(0, chars=()),))])
def test_a_node_with_nothing_to_give_is_refused(of: Node) -> None:
    with pytest.raises(PlacementError, match="no RDMA device can be given by CDI"):
        spec_of(of)
