"""The node's slices, made and compared."""

from __future__ import annotations

from typing import Any

import pytest

from nri_rdma.decide.advertised import Advertised
from nri_rdma.doors.dra.slices import is_published, new_slice, next_generation, rivals, selector, specs_of


def devices(number: int) -> list[Advertised]:
    return [
        Advertised(name=f"d{at}", attributes={"a/x": {"int": at}}, capacity={"a/bandwidth": "100G"} if at else {})
        for at in range(number)
    ]


def found(number: int, generation: int = 1) -> list[dict[str, Any]]:
    """The slices of so many devices, as the API server has them."""
    return [
        {"metadata": {"name": f"s{at}"}, "spec": spec}
        for at, spec in enumerate(specs_of("n", devices(number), generation))
    ]


@pytest.mark.parametrize(
    ("number", "sizes"), [(0, [0]), (1, [1]), (128, [128]), (129, [128, 1]), (256, [128, 128]), (257, [128, 128, 1])]
)
def test_a_slice_has_at_most_128_devices_and_all_have_one_generation(number: int, sizes: list[int]) -> None:
    specs = specs_of("node-a", devices(number), 7)
    assert [len(it["devices"]) for it in specs] == sizes
    assert [it["name"] for spec in specs for it in spec["devices"]] == [f"d{at}" for at in range(number)]
    pool = {"name": "node-a", "generation": 7, "resourceSliceCount": len(sizes)}
    assert all(it["pool"] == pool for it in specs)
    assert {(it["driver"], it["nodeName"]) for it in specs} == {("rdma.noderesource.dev", "node-a")}


def test_a_device_has_its_attributes_and_a_capacity_only_where_there_is_one() -> None:
    (spec,) = specs_of("n", devices(2), 1)
    assert spec["devices"] == [
        {"name": "d0", "attributes": {"a/x": {"int": 0}}},
        {"name": "d1", "attributes": {"a/x": {"int": 1}}, "capacity": {"a/bandwidth": {"value": "100G"}}},
    ]


def test_slices_are_as_they_shall_be_in_any_order_and_generation() -> None:
    assert is_published(found(129, 5)[::-1], "n", devices(129))
    no_list = found(0)
    del no_list[0]["spec"]["devices"]  # the API server leaves an empty list out
    assert is_published(no_list, "n", [])


@pytest.mark.parametrize(
    "told",
    [[], found(129)[:1], [*found(129, 1)[:1], *found(129, 2)[1:]], found(128), [*found(129), *found(129)]],
    ids=["none", "one missing", "two generations", "a device less", "twice"],
)
def test_other_slices_are_not(told: list[dict[str, Any]]) -> None:
    assert not is_published(told, "n", devices(129))


def test_the_next_generation_is_after_all() -> None:
    assert [next_generation([]), next_generation([*found(1, 3), *found(1, 9), *found(1, 4)])] == [1, 10]


def test_a_new_slice_goes_with_its_node_and_is_found_by_its_fields() -> None:
    made = new_slice({"driver": "d"}, "node-a", "uid-1", 1)
    assert (made["apiVersion"], made["kind"], made["spec"]) == ("resource.k8s.io/v1", "ResourceSlice", {"driver": "d"})
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Node", "node-a", "uid-1", True)
    assert selector("node-a") == {"fieldSelector": "spec.nodeName=node-a,spec.driver=rdma.noderesource.dev"}
    assert selector("node-a", driver="") == {"fieldSelector": "spec.nodeName=node-a"}


def ours(name: str, **strings: str) -> Advertised:
    attributes = {f"rdma.noderesource.dev/{key}": {"string": value} for key, value in strings.items()}
    return Advertised(name=name, attributes=attributes, capacity={})


def theirs(driver: str, *told: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"driver": driver, "nodeName": "n", "devices": list(told)}}


def test_another_drivers_device_is_ours_by_its_name_its_address_or_its_rdma_device() -> None:
    mine = [
        ours("pci-0000-19-00-0", pciAddress="0000:19:00.0", rdmaDevice="mlx5_0"),
        ours("pci-0000-3f-00-0", pciAddress="0000:3f:00.0", rdmaDevice="mlx5_1"),
        ours("rxe0", rdmaDevice="rxe0"),
    ]
    dranet = theirs("dra.net", {"name": "pci-0000-19-00-0"}, {"name": "eth0", "attributes": {"a/mtu": {"int": 1500}}})
    sriov = theirs("sriov.example", {"name": "vf", "attributes": {"x/pci": {"string": "0000:3f:00.0"}}})
    soft = theirs("soft.example", {"name": "s", "attributes": {"x/dev": {"string": "rxe0"}}})
    gpu = theirs("gpu.example", {"name": "gpu-0", "attributes": {"x/pci": {"string": "0000:18:00.0"}}})
    own = theirs("rdma.noderesource.dev", {"name": "pci-0000-19-00-0"})
    assert rivals([soft, dranet, gpu, own, sriov, {"spec": {"driver": "none.example"}}], mine) == {
        "dra.net": ["pci-0000-19-00-0"],
        "soft.example": ["rxe0"],
        "sriov.example": ["pci-0000-3f-00-0"],
    }
    assert rivals([gpu, own], mine) == {}
