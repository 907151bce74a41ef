"""Claims in manifests: which parameters are for which request."""

from __future__ import annotations

from typing import Any

import pytest

from nri_rdma.text.claim_manifest import classes_in, count_of, is_claim, requests_in

DRIVER = "rdma.noderesource.dev"


def parameters(said: dict[str, Any], driver: str = DRIVER, **more: Any) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": said}, **more}


def claim(requests: list[Any], *config: dict[str, Any]) -> dict[str, Any]:
    devices = {"requests": requests, "config": list(config)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}


def request(name: str, device_class: str = "nics", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


NICS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "nics"},
    "spec": {"config": [parameters({"mode": "exclusive", "interface": {"mtu": 1500, "name": "x"}})]},
}


def test_a_request_has_its_class_s_parameters_and_over_them_its_own_key_by_key() -> None:
    asked = claim(
        [request("a", count=2), request("b", "others", adminAccess=True)],
        parameters({"interface": {"mtu": 9000}}, requests=["a"]),
        parameters({"colour": "red"}, driver="gpu.example.com"),
        parameters({"memlock": 5}),
    )
    first, second = requests_in(asked, DRIVER, classes_in([{"kind": "List", "items": [NICS]}]))
    assert first.parameters == {"mode": "exclusive", "interface": {"mtu": 9000, "name": "x"}, "memlock": 5}
    assert first.from_claim == {"interface": {"mtu": 9000}, "memlock": 5}
    assert (first.configs, first.others, first.count, first.is_admin) == ((0, 2), "class nics and config[0]", 2, False)
    assert (second.parameters, second.configs, second.others, second.is_admin) == ({"memlock": 5}, (2,), "", True)


def test_what_chooses_among_alternatives_and_what_is_no_request_is_passed_over() -> None:
    asked = claim([{"name": "a", "firstAvailable": [{"name": "x"}]}, 1, {"name": "b"}], parameters({"mode": "shared"}))
    assert list(requests_in(asked, DRIVER, {})) == []
    assert list(requests_in(NICS, DRIVER, {})) == []


def test_a_subrequest_that_a_config_names_is_of_its_request() -> None:
    asked = claim([request("a"), request("ab")], parameters({"memlock": 1}, requests=["a/x"]))
    assert [it.parameters for it in requests_in(asked, DRIVER, {})] == [{"memlock": 1}, {}]


@pytest.mark.parametrize("devices", [None, [], "all", {"requests": "all"}, {"requests": [], "config": 1}])
@pytest.mark.parametrize("said", [{}, {"spec": 1}, {"spec": []}])
def test_a_claim_of_another_form_has_no_requests(devices: object, said: dict[str, Any]) -> None:
    asked = {**claim([]), "spec": {"devices": devices}, **said}
    assert list(requests_in(asked, DRIVER, {})) == []


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({}, 1),
        ({"count": 3, "allocationMode": "ExactCount"}, 3),
        ({"count": 3, "allocationMode": "All"}, None),
        ({"count": "3"}, None),
        ({"firstAvailable": []}, None),
    ],
)
def test_a_request_asks_for_one_device_or_as_many_as_it_says(said: dict[str, Any], count: int | None) -> None:
    assert count_of(said) == count


@pytest.mark.parametrize(
    ("kind", "version", "expected"),
    [
        ("ResourceClaim", "resource.k8s.io/v1", True),
        ("DeviceClass", "resource.k8s.io/v1beta1", True),
        ("ResourceClaim", "v1", False),
        ("Pod", "resource.k8s.io/v1", False),
        (None, "", False),
    ],
)
def test_parameters_are_in_claims_and_classes_of_kubernetes(kind: str | None, version: str, expected: bool) -> None:
    assert is_claim({"kind": kind, "apiVersion": version}) is expected
