"""The pods of a KubeRay manifest: of the head, and of each group of workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.manifest import no_text, read_pods
from nri_rdma.text.refusals import MAX_QUOTED
from tests.unit.commands.validate.checking import checked

PREFIX = "rdma.noderesource.dev"


def _template(name: str, asked: str = "1", **container: object) -> dict[str, Any]:
    return {
        "template": {
            "metadata": {"annotations": {PREFIX: asked}},
            "spec": {"containers": [{"name": name, **container}]},
        }
    }


def _groups(*asked: str) -> dict[str, Any]:
    workers = [{"groupName": f"g{number}", **_template("worker", text)} for number, text in enumerate(asked)]
    return {"headGroupSpec": _template("head"), "workerGroupSpecs": workers}


def _ray(kind: str, groups: dict[str, Any]) -> dict[str, Any]:
    below = {"RayCluster": groups, "RayJob": {"rayClusterSpec": groups}, "RayService": {"rayClusterConfig": groups}}
    return {"kind": kind, "metadata": {"name": "ray", "namespace": "ml"}, "spec": below[kind]}


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService"])
def test_the_pods_of_all_groups_are_found(kind: str) -> None:
    found = read_pods(_ray(kind, _groups("2", "3")), "ray.yaml")
    assert [(str(pod), pod.annotations[PREFIX], pod.containers[0].name) for pod in found] == [
        ("ml/ray-head", "1", "head"),
        ("ml/ray-g0-worker", "2", "worker"),
        ("ml/ray-g1-worker", "3", "worker"),
    ]


@pytest.mark.parametrize("workers", [None, [], "none"])
def test_a_cluster_without_workers_has_a_head(workers: object) -> None:
    groups = {"headGroupSpec": _template("head"), "workerGroupSpecs": workers}
    assert [str(pod) for pod in read_pods(_ray("RayCluster", groups), "ray.yaml")] == ["ml/ray-head"]


def test_what_is_no_group_is_refused_with_its_place() -> None:
    groups = {"headGroupSpec": _template("head"), "workerGroupSpecs": [7]}
    with pytest.raises(RequestError) as caught:
        read_pods(_ray("RayCluster", groups), "ray.yaml")
    assert (caught.value.code, caught.value.where) == (
        ErrorCode.MANIFEST_VALUE,
        "ray.yaml.spec.workerGroupSpecs[0]",
    )


def test_every_group_is_checked_and_told_with_its_line() -> None:
    text = json.dumps(_ray("RayCluster", _groups("{mode: alone}", "1", "{cuont: 1}")), indent=1)
    lines = text.splitlines()
    found = checked(text).problems
    assert [
        (problem.code, "alone" in lines[problem.line - 1], "cuont" in lines[problem.line - 1]) for problem in found
    ] == [
        (ErrorCode.ANNOTATION_VALUE, True, False),
        (ErrorCode.ANNOTATION_UNKNOWN_KEY, False, True),
    ]


def test_an_annotation_of_the_cluster_is_told_to_be_misplaced_once() -> None:
    document = _ray("RayCluster", _groups("1"))
    document["metadata"]["annotations"] = {PREFIX: "1"}
    (problem,) = checked(json.dumps(document)).problems
    assert problem.code is ErrorCode.ANNOTATION_PLACE
    assert "spec.headGroupSpec.template.metadata.annotations" in problem.hint


def test_a_container_asks_for_the_resources_with_a_domain_and_the_claims_that_have_a_name() -> None:
    resources = {
        "limits": {"cpu": "4", "rdma/hca": 2, "rdma/nic": "1"},
        "requests": {"memory": "1Gi", "rdma/hca": 1},
        "claims": [{"name": "nics"}, {"name": ""}, {}, {"name": "nics"}],
    }
    pod = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "resources": resources}]}}
    (container,) = read_pods(pod, "pod.yaml")[0].containers
    assert (dict(container.resources), container.claims) == ({"rdma/hca": "1", "rdma/nic": "1"}, ("nics",))


@pytest.mark.parametrize(
    ("resources", "has_whole"),
    [
        ({"limits": {"cpu": 8}}, True),
        ({"limits": {"cpu": "8"}, "requests": {"cpu": 8}}, True),
        ({"limits": {"cpu": 8}, "requests": {"cpu": 4}}, False),
        ({"limits": {"cpu": "4"}, "requests": {"cpu": "4000m"}}, True),
        ({"limits": {"cpu": "4.0"}, "requests": {"cpu": 4}}, True),
        ({"limits": {"cpu": "4"}, "requests": {"cpu": "4001m"}}, False),
        ({"limits": {"cpu": 0}}, False),
        ({"limits": {"cpu": "many"}}, False),
        ({"limits": {"cpu": "500m"}}, False),
        ({"requests": {"cpu": 8}}, False),
        ({}, False),
    ],
)
def test_a_container_may_have_cpus_alone_whose_limit_is_a_whole_number_and_its_request(
    resources: dict[str, object], has_whole: bool
) -> None:
    pod = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "resources": resources}]}}
    (container,) = read_pods(pod, "pod.yaml")[0].containers
    assert container.has_whole_cpus is has_whole


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, '"true"'),
        ({"count": 1}, "'{\"count\": 1}'"),
        ([1] * 20, f"'{[1] * 20}'"),
        ({"a": "it's"}, "..."),
        (None, '""'),
        (["x" * (MAX_QUOTED - 4)], f"'[\"{'x' * (MAX_QUOTED - 4)}\"]'"),
        (["x" * (MAX_QUOTED - 3)], "..."),
    ],
)
def test_an_annotation_that_is_no_text_is_told_with_the_text_that_it_may_become(value: object, written: str) -> None:
    assert no_text("w", "k", value).hint == f"put it in quotes, such as k: {written}, or below k: |"


def test_a_text_under_a_key_that_is_none_stays_the_same_text() -> None:
    assert 'such as 1: "a", or' in no_text("HERE", "1", "a").hint
