"""A claim that the scheduler has allocated, as the API server tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nri_rdma.errors import ApiServerError, ClaimError, ErrorCode, RequestError
from nri_rdma.model.claim import ClaimName
from nri_rdma.text.allocated_claim import (
    POD_CLAIM_NAME,
    claim_path,
    main_request,
    merged,
    read_claim,
    refuse_names,
    refuse_uid,
)

OURS, OTHER = "rdma.noderesource.dev", "gpu.example.com"


def config(source: str, parameters: dict[str, Any], *requests: str, driver: str = OURS) -> dict[str, Any]:
    """One entry of the allocation's configuration."""
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": source, "opaque": opaque, **({"requests": list(requests)} if requests else {})}


def result(request: str, device: str, driver: str = OURS, **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "node-a", "device": device, **more}


def claim(*results: dict[str, Any], configs: tuple[dict[str, Any], ...] = (), **metadata: Any) -> dict[str, Any]:
    """A claim as JSON."""
    devices = {"results": list(results), "config": list(configs)}
    told = {"namespace": "team", "name": "rails-x7k", "uid": "u1", **metadata}
    return {"metadata": told, "status": {"allocation": {"devices": devices}}}


def test_the_claims_own_parameters_stand_over_those_of_its_class_whatever_their_order() -> None:
    configs = (
        config("FromClaim", {"interface": {"mtu": 9000}, "routes": [1]}),
        config("FromClass", {"mode": "shared", "interface": {"mtu": 1500, "name": "r0"}, "routes": [2, 3]}),
    )
    (request,) = read_claim(claim(result("nic", "a"), configs=configs), OURS).requests
    assert request.parameters == {"mode": "shared", "interface": {"mtu": 9000, "name": "r0"}, "routes": [1]}
    assert request.from_claim == {"interface": {"mtu": 9000}, "routes": [1]}


def test_parameters_of_other_requests_and_of_other_drivers_are_not_ours() -> None:
    configs = (
        config("FromClaim", {"mode": "shared"}, "other"),
        config("FromClaim", {"mtu": 1}, "nic", driver=OTHER),
        config("FromClaim", {"count": 2}, "other", "nic"),
    )
    (request,) = read_claim(claim(result("nic", "a"), configs=configs), OURS).requests
    assert request.parameters == {"count": 2}


@pytest.mark.parametrize(
    ("named", "is_meant"), [("req", True), ("req/sub", True), ("req/other", False), ("sub", False)]
)
def test_a_request_of_a_prioritized_list_gets_what_its_list_gets_and_what_it_gets_itself(
    named: str, is_meant: bool
) -> None:
    told = claim(result("req/sub", "a"), configs=(config("FromClass", {"mode": "shared"}, named),))
    (request,) = read_claim(told, OURS).requests
    assert request.name == "req/sub"
    assert request.parameters == ({"mode": "shared"} if is_meant else {})
    assert (main_request(request.name), main_request("plain")) == ("req", "plain")


def test_the_devices_of_a_request_keep_their_order_and_those_of_another_driver_are_left_out() -> None:
    told = claim(result("b", "x2"), result("gpu", "g0", OTHER), result("a", "x0"), result("b", "x1"))
    assert [(it.name, it.devices, it.pool) for it in read_claim(told, OURS).requests] == [
        ("b", ("x2", "x1"), "node-a"),
        ("a", ("x0",), "node-a"),
    ]


@pytest.mark.parametrize(
    "told",
    [
        claim(result("gpu", "g0", OTHER)),
        claim(),
        {"metadata": {"namespace": "team", "name": "rails-x7k", "uid": "u1"}},
        {"metadata": {"namespace": "team", "name": "rails-x7k", "uid": "u1"}, "status": None},
        {"metadata": {"namespace": "team", "name": "rails-x7k", "uid": "u1"}, "status": {"allocation": {}}},
    ],
    ids=["of another driver", "of nothing", "no status", "null status", "no devices"],
)
def test_a_claim_without_devices_of_ours_has_no_request(told: dict[str, Any]) -> None:
    read = read_claim(told, OURS)
    assert (read.namespace, read.name, read.uid, read.requests) == ("team", "rails-x7k", "u1", ())


def test_a_claim_of_a_template_is_labelled_as_its_pod_calls_it() -> None:
    assert read_claim(claim(annotations={POD_CLAIM_NAME: "rails"}), OURS).label == "rails"
    assert read_claim(claim(annotations=None), OURS).label == "rails-x7k"


def test_one_device_with_admin_access_makes_the_request_an_admins() -> None:
    told = claim(result("a", "x0"), result("a", "x1", adminAccess=True), result("b", "x2", adminAccess=False))
    assert [it.is_admin for it in read_claim(told, OURS).requests] == [True, False]


def test_merging_changes_none_of_what_is_merged() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}, "d": None}
    assert merged([below, above]) == {"a": {"b": 1, "c": 2}, "d": None}
    assert merged([{"a": {"b": 1}}, {"a": 3}, {"a": {"c": 2}}]) == {"a": {"c": 2}}
    assert (below, above, merged([])) == ({"a": {"b": 1}}, {"a": {"c": 2}, "d": None}, {})


STRANGE: tuple[Any, ...] = (None, True, 7, "text", [], {}, [None], [[]], [{}], {"a": 1}, float("nan"))


def test_a_claim_of_any_other_form_is_an_error_of_the_api_server() -> None:
    """Each value of a whole claim is replaced by others, and left out."""
    whole = claim(
        result("nic", "a"),
        configs=(config("FromClass", {"mode": "shared"}, "nic"), config("FromClaim", {"interface": {"mtu": 9}})),
        annotations={POD_CLAIM_NAME: "rails"},
    )
    refusals = 0
    for strange in (*STRANGE, KeyError):
        for told in changed(whole, strange):
            try:
                read = read_claim(told, OURS)
            except ApiServerError as error:
                refusals += 1
                assert str(error).startswith("nri-rdma: API-SERVER: the API server's answer is no ResourceClaim")
            else:
                words = (read.namespace, read.name, read.uid, read.label)
                requests = [word for it in read.requests for word in (it.name, it.pool, *it.devices)]
                assert all(isinstance(it, str) for it in (*words, *requests))
                assert all(isinstance(it.parameters, dict) for it in read.requests)
    assert refusals > 150


def changed(value: Any, strange: Any) -> Iterator[Any]:
    """Yield this value with another one in each place; KeyError: with none."""
    if strange is not KeyError:
        yield strange
    if isinstance(value, dict):
        for key in value:
            yield from ({**value, key: it} for it in changed(value[key], strange))
            if strange is KeyError:
                yield {name: it for name, it in value.items() if name != key}
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from ([*value[:index], it, *value[index + 1 :]] for it in changed(item, strange))


PATHS = (
    "",
    ".",
    "..",
    "a/b",
    "../../evil",
    "a\nb",
    "a;b",
    "a?watch=true",
    "a#b",
    "a%2fb",
    "a b",
    "\u202eb",
    "\ud800",
    "-a",
)


@pytest.mark.parametrize("uid", [*PATHS[3:-1], "", "a" * 64, "a_b"])
def test_a_uid_that_would_be_a_path_is_refused(uid: str) -> None:
    with pytest.raises(ClaimError, match=r"KUBELET-ANSWER: .* by the uid"):
        refuse_uid(uid)
    with pytest.raises(ClaimError, match="KUBELET-ANSWER"):
        claim_path(ClaimName(namespace="team", name="rails", uid=uid))


@pytest.mark.parametrize("word", [*PATHS, "A", "a-", "a..b", "a" * 254])
def test_a_name_that_would_be_another_path_at_the_api_server_is_refused(word: str) -> None:
    for name in (
        ClaimName(namespace=word, name="rails", uid="u1"),
        ClaimName(namespace="team", name=word, uid="u1"),
    ):
        with pytest.raises(ClaimError, match="KUBELET-ANSWER: the kubelet names a claim"):
            refuse_names(name)
        with pytest.raises(ClaimError) as caught:
            claim_path(name)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [
        ("team", "rails", "6b4c29a0-0000-4000-8000-0000000000c1"),
        ("1", "pod-1.rails-x7k2p", "u.1"),
        ("a" * 63, ".".join(["a" * 63] * 3) + "." + "b" * 61, "A" * 63),
    ],
)
def test_the_names_that_kubernetes_gives_are_taken(namespace: str, name: str, uid: str) -> None:
    path = claim_path(ClaimName(namespace=namespace, name=name, uid=uid))
    assert path == f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


@pytest.mark.parametrize("word", [*(it for it in PATHS if it != "a/b"), "a/b/c", "a" * 64])
def test_a_claim_with_names_that_kubernetes_does_not_give_is_none(word: str) -> None:
    for told in (
        claim(result(word, "a")),
        claim(result("nic", word)),
        claim({**result("nic", "a"), "pool": f"{word}/"}),
    ):
        with pytest.raises(ApiServerError, match="no ResourceClaim"):
            read_claim(told, OURS)


@pytest.mark.parametrize("levels", [9, 64, 500, 700])
@pytest.mark.parametrize("source", ["FromClass", "FromClaim"])
def test_parameters_that_nest_too_deep_are_an_error_of_who_wrote_them(levels: int, source: str) -> None:
    parameters: Any = "x"
    for number in range(levels):
        parameters = {"a": parameters} if number % 2 or number == levels - 1 else [parameters]
    told = claim(result("nic", "a"), configs=(config(source, parameters), config(source, parameters)))
    with pytest.raises(RequestError) as caught:
        read_claim(told, OURS)
    assert caught.value.code is ErrorCode.ANNOTATION_SIZE
    assert f"the parameters for {OURS} are nested deeper than 8 levels" in str(caught.value)
    others = claim(result("nic", "a"), configs=(config(source, parameters, driver=OTHER),))
    assert read_claim(others, OURS).requests[0].parameters == {}
