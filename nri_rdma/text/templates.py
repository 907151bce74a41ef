"""Finds the pods in a Kubernetes object: a pod itself, or the pod templates in any kind of object. Pure.

Kubernetes' own kinds and KubeRay's have their pods at known places, where mistakes are errors. In all other kinds,
including other projects' kinds of the same names (Volcano's Job), a pod template is recognised by its shape: a mapping
with ``spec: {containers: [...]}`` at any depth. Unknown kinds therefore need no entry here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias  # Any: a manifest before it is read

from nri_rdma.text.refusals import bounded

Way: TypeAlias = tuple[str | int, ...]
"""A path into an object: keys of mappings and indexes of lists."""

_EACH = "*"
_SPEC = (("spec", "template"),)
_HEAD = ("headGroupSpec", "template")
_WORKERS = ("workerGroupSpecs", _EACH, "template")
_KINDS: Mapping[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "Pod": ("", ((),)),
    "PodTemplate": ("", (("template",),)),
    "ReplicationController": ("", _SPEC),
    "Deployment": ("apps", _SPEC),
    "ReplicaSet": ("apps", _SPEC),
    "StatefulSet": ("apps", _SPEC),
    "DaemonSet": ("apps", _SPEC),
    "Job": ("batch", _SPEC),
    "CronJob": ("batch", (("spec", "jobTemplate", "spec", "template"),)),
    "RayCluster": ("ray.io", (("spec", *_HEAD), ("spec", *_WORKERS))),
    "RayJob": ("ray.io", (("spec", "rayClusterSpec", *_HEAD), ("spec", "rayClusterSpec", *_WORKERS))),
    "RayService": ("ray.io", (("spec", "rayClusterConfig", *_HEAD), ("spec", "rayClusterConfig", *_WORKERS))),
}
"""By kind: its API group, and the paths to its pods."""


def is_object(document: object) -> bool:
    """Return whether a document is a Kubernetes object, that is, a mapping with a kind."""
    return isinstance(document, dict) and isinstance(document.get("kind"), str)


def ways_to_pods(document: object) -> tuple[Way, ...]:
    """Return the paths from an object to its pods; empty if there is no pod in it."""
    if not isinstance(document, dict) or not is_object(document):
        return ()
    known = tuple(way for keys in _known_places(document) for way in _expanded(document, keys))
    return known if () in known else tuple(dict.fromkeys((*known, *_templates_below(document, ()))))


def _known_places(document: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the paths to the pods in an object of a known kind; empty if the kind is unknown. A document without an
    apiVersion is recognised by its kind only."""
    group, places = _KINDS.get(document["kind"], ("", ()))
    version = document.get("apiVersion")
    return places if not isinstance(version, str) or version.rpartition("/")[0] == group else ()


def _expanded(value: object, keys: tuple[str, ...]) -> Iterator[Way]:
    """Yield each path in a value that matches `keys`, in which ``*`` stands for every index of a list."""
    if not keys:
        yield ()
        return
    key, *rest = keys
    if key == _EACH:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from ((number, *way) for way in _expanded(item, tuple(rest)))
    else:
        below = value.get(key) if isinstance(value, dict) else None
        yield from ((key, *way) for way in _expanded(below, tuple(rest)))


def _templates_below(value: object, way: Way) -> Iterator[Way]:
    for key, inner in entries(value):
        if _is_template(inner):
            yield (*way, key)
        else:
            yield from _templates_below(inner, (*way, key))


def _is_template(value: object) -> bool:
    """Return whether a value has the shape of a pod template or of a whole pod. A mapping with another kind than Pod
    does not."""
    if not isinstance(value, dict) or value.get("kind", "Pod") != "Pod":
        return False
    spec = value.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def makes_several(document: Mapping[str, Any], way: Way) -> bool:
    """Return whether several pods may be made from the template at a path; always true for an unknown kind."""
    if not way or "headGroupSpec" in way:
        return False
    if document["kind"] not in _DEFAULT_IS_ONE or not _known_places(document):
        return True
    spec = document.get("spec")
    counts = [spec.get(key, 1) for key in ("replicas", "parallelism")] if isinstance(spec, dict) else []
    return any(count is not None and count not in (0, 1) for count in counts)


_DEFAULT_IS_ONE = ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job")
"""Kubernetes' kinds that make one pod at a time unless the object says how many."""


def entries(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the keys of a mapping, or the indexes of a list, with their values; nothing for other values."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def items_of(document: object, way: Way = ()) -> Iterator[tuple[Any, Way]]:
    """Yield the objects of a document with their paths: the items of a list, or else the document itself."""
    items = document.get("items") if isinstance(document, dict) else None
    if isinstance(items, list):
        for number, item in enumerate(items):
            yield from items_of(item, (*way, "items", number))
    else:
        yield document, way


def why_unread(document: object) -> str:
    """Return a sentence about a Kubernetes object in which no pod was found. Returns "" if a pod was found, or if the
    document is not a Kubernetes object."""
    if not isinstance(document, dict) or not is_object(document) or ways_to_pods(document):
        return ""
    return f"kind {bounded(document['kind'])}: no pod template in it, not read"


# Names of pods

_WORDS = {"headGroupSpec": "head", "workerGroupSpecs": "", "rayClusterSpec": "", "rayClusterConfig": ""}
"""The words that KubeRay uses in the names of its pods."""
_ENDING = re.compile(r"(Pod)?Template$|Spec$")


def pod_suffix(document: Mapping[str, Any], way: Way, ways: tuple[Way, ...]) -> str:
    """Return the part of the pod's name that follows the object's name: the names of the list entries on its path, and
    the keys in which its path differs from those of other pods. Controllers append random letters or numbers to it."""
    words: list[str] = []
    value: Any = document
    for depth, key in enumerate(way):
        value = value[key] if isinstance(key, int) else value.get(key) if isinstance(value, dict) else None
        if isinstance(key, int):
            own = value if isinstance(value, dict) else {}
            words.append(str(own.get("groupName") or own.get("name") or key))
            words += ["worker"] if way[depth - 1] == "workerGroupSpecs" else []
        elif key in _WORDS:
            words.append(_WORDS[key])
        elif any(other[:depth] == way[:depth] and other[depth : depth + 1] != (key,) for other in ways):
            words.append(_ENDING.sub("", key).lower())
    return "".join(f"-{word}" for word in words if word)
