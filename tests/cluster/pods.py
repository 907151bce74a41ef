"""Pods for the cluster's tests, and what kubectl says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.cluster import Cluster
from tests.rig.image import IMAGE

_NOT_YET = "pod does not exist"


def pod(
    name: str,
    *,
    annotations: Mapping[str, str] | None = None,
    containers: Sequence[Mapping[str, Any]] = ({},),
    **spec: object,
) -> dict[str, Any]:
    """Return a pod whose containers sleep; each is the keys that differ from `c0`, `c1`, ... with the rig's image."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "containers": [
                {"name": f"c{number}", "image": IMAGE, "imagePullPolicy": "Never", **container}
                for number, container in enumerate(containers)
            ],
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **spec,
        },
    }


START_S = 150.0
"""The API server may refuse a node the claim of a pod that was made a moment before, and the kubelet tries again after
up to 90 s."""


def start(cluster: Cluster, asked: Mapping[str, Any], seconds: float = START_S) -> dict[str, Any]:
    """Create a pod, wait until it runs, and return it as the API server has it then."""
    name = asked["metadata"]["name"]
    cluster.kubectl("create", "-f", "-", given=asked)
    cluster.wait(f"pod {name} (events: {cluster.nodes})", lambda: phase(cluster, name) == "Running", seconds)
    found: dict[str, Any] = cluster.get("pod", name)
    return found


def phase(cluster: Cluster, name: str) -> str:
    """Return a pod's phase."""
    return cluster.kubectl("get", "pod", name, "-o=jsonpath={.status.phase}", fails=True)


def runs(cluster: Cluster, name: str, container: str = "c0") -> bool:
    """Whether a container of a pod runs. The pod's phase is Running also while a container is refused again and again:
    the kubelet counts each refused start as one."""
    found = cluster.get("pod", name)["status"].get("containerStatuses", [])
    return any(it["name"] == container and "running" in it["state"] for it in found)


def events(cluster: Cluster, name: str) -> list[str]:
    """Return the messages of a pod's events, the oldest first."""
    found = cluster.get("events", f"--field-selector=involvedObject.name={name}", "--sort-by=.lastTimestamp")
    return [event["message"] for event in found["items"]]


def execute(cluster: Cluster, name: str, command: str, container: str = "c0") -> str:
    """Run a command of a shell in a container and return what it printed. A kubelet that has just started does not
    know its pods yet."""
    asked = ("exec", name, "-c", container, "--", "sh", "-c", command)
    cluster.wait(f"the kubelet to know {name}", lambda: _NOT_YET not in cluster.kubectl(*asked[:5], "true", fails=True))
    return cluster.kubectl(*asked)


def delete(cluster: Cluster, name: str) -> None:
    """Delete a pod, and wait until it is gone."""
    cluster.kubectl("delete", "pod", name, "--wait=true", "--timeout=60s")
