"""Which pods keep the chart from being removed."""

from __future__ import annotations

from typing import Any

import pytest

from nri_rdma.commands.leave.holding import holding

PREFIX, GUARD = "rdma.noderesource.dev", "rdma.noderesource.dev/guard"
ON = {"nodeName": "n1"}


def pod(spec: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "p", "annotations": annotations},
        "spec": {**ON, **(spec or {})},
        "status": {"phase": "Running", **status},
    }


def limited(resource: str) -> list[dict[str, Any]]:
    return [{"name": "c0", "resources": {"limits": {resource: "1"}}}]


def claim(name: str, *drivers: str) -> dict[str, Any]:
    results = [{"driver": it, "device": "d"} for it in drivers]
    return {
        "metadata": {"namespace": "default", "name": name},
        "status": {"allocation": {"devices": {"results": results}}},
    }


CLAIMS = [
    claim("nic", PREFIX),
    claim("gpu", "gpu.example"),
    claim("both", "gpu.example", PREFIX),
    {**claim("new"), "status": {}},
]


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (pod(annotations={f"{PREFIX}/pod": "1"}), True),
        (pod(annotations={f"{PREFIX}/pod": "[]"}), False),
        (pod(annotations={f"{PREFIX}/pod": "{broken"}), True),
        (pod(annotations={"other/pod": "1"}), False),
        (pod({"containers": limited(GUARD)}), True),
        (pod({"initContainers": limited("rdma/a")}), True),
        (pod({"containers": limited("nvidia.com/gpu")}), False),
        (pod(resourceClaimStatuses=[{"name": "rdma", "resourceClaimName": "nic"}]), True),
        (pod(resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "gpu"}]), False),
        (pod({"resourceClaims": [{"name": "rdma", "resourceClaimName": "both"}]}), True),
        (pod({"resourceClaims": [{"name": "rdma", "resourceClaimName": "new"}]}), False),
        (pod(extendedResourceClaimStatus={"resourceClaimName": "nic"}), True),
        (pod({"containers": limited(GUARD)}, phase="Succeeded"), False),
        (pod({"containers": limited(GUARD)}, phase="Failed"), False),
        (pod({"containers": limited(GUARD), "nodeName": ""}, phase="Pending"), False),
        (pod({"containers": limited(GUARD)}, phase="Pending"), True),
        (pod(), False),
    ],
)
def test_a_pod_holds_what_it_asks_for_until_it_ends(found: dict[str, Any], holds: bool) -> None:
    expected = ["default/p on n1"] if holds else []
    assert holding([found], CLAIMS, PREFIX, [GUARD, "rdma/a"]) == expected
