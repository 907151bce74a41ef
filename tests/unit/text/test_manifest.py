"""The pods of a KubeRay manifest: of the head, and of each group of workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.manifest import read_pods
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
