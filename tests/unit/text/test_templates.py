"""Pods are found by their shape, in any kind, and named as their controllers name them."""

from __future__ import annotations

from typing import Any

import pytest

from nri_rdma.text.templates import items_of, makes_several, pod_suffix, ways_to_pods, why_unread

TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "a"}]}}


def _object(spec: object, kind: str = "Anything", version: str = "example.com/v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "way"),
    [
        ({"template": TEMPLATE}, ("spec", "template")),
        ({"leaderTemplate": TEMPLATE}, ("spec", "leaderTemplate")),
        ({"a": [{"b": {"c": [1, TEMPLATE]}}]}, ("spec", "a", 0, "b", "c", 1)),
        ({"components": [{"template": {"kind": "Pod", **TEMPLATE}}]}, ("spec", "components", 0, "template")),
    ],
)
def test_a_template_is_found_at_any_depth_of_any_kind(spec: object, way: tuple[str | int, ...]) -> None:
    assert ways_to_pods(_object(spec)) == (way,)


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        [TEMPLATE],
        {"spec": {"template": TEMPLATE}},
        _object({"containers": [{"name": "a"}]}, "Pod", "example.com/v1"),
        _object({"template": {"spec": {}}}),
        _object({"template": {"spec": {"containers": {"name": "a"}}}}),
        _object({"template": {"spec": {"template": {"metadata": {}}}}}),
        _object({"objects": [{"kind": "Prometheus", **TEMPLATE}]}),
    ],
)
def test_what_has_another_shape_is_no_pod(document: object) -> None:
    assert ways_to_pods(document) == ()


@pytest.mark.parametrize(
    ("version", "ways"),
    [
        ("batch/v1", (("spec", "template"), ("spec", "tasks", 0, "template"))),
        ("batch.volcano.sh/v1alpha1", (("spec", "tasks", 0, "template"),)),
    ],
)
def test_kinds_of_one_name_are_told_apart_by_their_api(version: str, ways: tuple[object, ...]) -> None:
    assert ways_to_pods(_object({"tasks": [{"template": TEMPLATE}]}, "Job", version)) == ways


def test_below_a_pod_nothing_is_searched() -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [], "volumes": [{"inner": TEMPLATE}]}}
    assert ways_to_pods(pod) == ((),)
    assert ways_to_pods(_object({"template": {**TEMPLATE, "inner": TEMPLATE}})) == (("spec", "template"),)


def test_the_submitter_of_a_ray_job_is_a_pod_too() -> None:
    spec = {"rayClusterSpec": {"headGroupSpec": {"template": TEMPLATE}}, "submitterPodTemplate": TEMPLATE}
    document = _object(spec, "RayJob", "ray.io/v1")
    ways = ways_to_pods(document)
    assert [pod_suffix(document, way, ways) for way in ways] == ["-head", "-submitter"]


@pytest.mark.parametrize(
    ("spec", "suffixes"),
    [
        ({"template": TEMPLATE}, [""]),
        ({"replicas": {"Launcher": {"template": TEMPLATE}}}, [""]),
        (
            {"replicas": {"Launcher": {"template": TEMPLATE}, "Worker": {"template": TEMPLATE}}},
            ["-launcher", "-worker"],
        ),
        ({"leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE}, ["-leader", "-worker"]),
        ({"groups": [[{"template": TEMPLATE}], [{"template": TEMPLATE}]]}, ["-0-0", "-1-0"]),
        ({"tasks": [{"name": "ps", "template": TEMPLATE}, {"template": TEMPLATE}, TEMPLATE]}, ["-ps", "-1", "-2"]),
    ],
)
def test_pods_of_one_object_are_told_apart_by_their_names(spec: object, suffixes: list[str]) -> None:
    document = _object(spec)
    ways = ways_to_pods(document)
    assert [pod_suffix(document, way, ways) for way in ways] == suffixes


def test_an_object_without_a_pod_is_told_in_words() -> None:
    assert why_unread({"kind": "Service"}) == "kind Service: no pod template in it, not read"
    assert why_unread(_object({"template": TEMPLATE})) == ""
    assert why_unread({"metadata": {}}) == ""


def test_the_items_of_lists_are_objects() -> None:
    inner = {"kind": "List", "items": [1, {"kind": "Service"}]}
    assert list(items_of({"items": [inner, 2]})) == [
        (1, ("items", 0, "items", 0)),
        ({"kind": "Service"}, ("items", 0, "items", 1)),
        (2, ("items", 1)),
    ]


@pytest.mark.parametrize(
    ("kind", "version", "spec", "several"),
    [
        ("Deployment", "apps/v1", {}, False),
        ("Deployment", "apps/v1", {"replicas": 1}, False),
        ("Deployment", "apps/v1", {"replicas": None}, False),
        ("Deployment", "apps/v1", {"replicas": 4}, True),
        ("StatefulSet", "apps/v1", {"replicas": 2}, True),
        ("Job", "batch/v1", {"completions": 4}, False),
        ("Job", "batch/v1", {"completions": 4, "parallelism": 4}, True),
        ("Job", "batch.volcano.sh/v1alpha1", {}, True),
        ("DaemonSet", "apps/v1", {}, True),
        ("MPIJob", "kubeflow.org/v2beta1", {}, True),
    ],
)
def test_a_template_is_for_several_pods_unless_the_kind_makes_one(
    kind: str, version: str, spec: dict[str, object], several: bool
) -> None:
    document = _object({**spec, "template": TEMPLATE}, kind, version)
    (way,) = ways_to_pods(document)
    assert makes_several(document, way) is several


def test_a_pod_is_one_and_so_is_the_head_of_a_ray_cluster() -> None:
    pod = {"kind": "Pod", **TEMPLATE}
    assert [makes_several(pod, way) for way in ways_to_pods(pod)] == [False]
    groups = {"headGroupSpec": {"template": TEMPLATE}, "workerGroupSpecs": [{"template": TEMPLATE}]}
    cluster = _object(groups, "RayCluster", "ray.io/v1")
    assert [makes_several(cluster, way) for way in ways_to_pods(cluster)] == [False, True]
