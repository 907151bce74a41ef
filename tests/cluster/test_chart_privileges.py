"""What the chart gives the daemon's pod is taken away, one thing at a time: what becomes of pods, and what doctor says.

docs/kubernetes.md has the rows as a table.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.helm import IMAGE_ARCHIVE, NAMESPACE, Helm
from tests.cluster.pods import delete, pod, runs
from tests.cluster.privileges import ROWS, RUNS, WAITS, Row
from tests.cluster.test_chart_uninstall import KEY, VALUES
from tests.cluster.test_claims import claim_spec, claiming, make, template, verbs

IMAGES = [IMAGE_ARCHIVE]
DAEMONS = ("daemonset", "nri-rdma-default", "-n", NAMESPACE)
SETTLES_S = 5.0
"""After a start the kubelet and the scheduler learn what the daemon offers."""
DECIDED_S = 45.0
CLAIM = "claim"
COMES_S = 90.0
_CODE = re.compile(r"nri-rdma: (?!NOT-READY)([A-Z-]+):")
_OWN = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields")


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    """The chart is installed."""
    found = Helm(cluster)
    found.upgrade(VALUES)
    make(cluster, template("nic", claim_spec({"nic": {}})))
    return found


@pytest.fixture(scope="module")
def whole(cluster: Cluster, helm: Helm) -> dict[str, Any]:
    """The DaemonSet as the chart makes it."""
    found: dict[str, Any] = cluster.get(*DAEMONS)
    found["metadata"] = {key: it for key, it in found["metadata"].items() if key not in _OWN}
    del found["status"]
    return found


def replace(cluster: Cluster, whole: dict[str, Any], row: Row | None) -> None:
    """Have the daemon run without what the row takes away, or with all, and wait until it is ready if it ever is."""
    changed = json.loads(json.dumps(whole))
    template_of_pods = changed["spec"]["template"]
    template_of_pods["metadata"]["annotations"]["test"] = str(time.monotonic_ns())
    if row is not None:
        row.take(template_of_pods["spec"])
    cluster.kubectl("replace", "-f", "-", given=changed)
    cluster.kubectl("rollout", "status", *DAEMONS, "--timeout=45s" if row is not None else "--timeout=120s", fails=True)
    time.sleep(SETTLES_S)


def doctor(helm: Helm, *, comes: bool) -> str:
    """What doctor says, in one line. The daemon's container may take its time, unless it never comes."""
    until = time.monotonic() + (COMES_S if comes else 0)
    while True:
        told = " ".join(helm.daemon("doctor", fails=True).split())
        if "CHECK" in told or time.monotonic() > until:
            return told
        time.sleep(1)


def outcomes(cluster: Cluster, names: list[str]) -> list[str]:
    """How each pod ended: RUNS with its devices, WAITS, or the code of its refusal. One with a claim may wait in either
    place: the kubelet withdraws the slices of a driver half a minute after that has gone."""
    until, found = time.monotonic() + DECIDED_S, dict.fromkeys(names, "")
    while time.monotonic() < until and not all(found.values()):
        for name in [it for it, ended in found.items() if not ended]:
            if runs(cluster, name):
                found[name] = RUNS if verbs(cluster, name) else "BARE"
            elif code := _code(cluster, name):
                found[name] = code
        time.sleep(0.5)
    return [
        ended or (WAITS if name == CLAIM or _is_unplaced(cluster, name) else "HANGS") for name, ended in found.items()
    ]


def _is_unplaced(cluster: Cluster, name: str) -> bool:
    return "nodeName" not in cluster.get("pod", name)["spec"]


def _code(cluster: Cluster, name: str) -> str:
    uid = cluster.get("pod", name)["metadata"]["uid"]
    events = cluster.get("events", f"--field-selector=involvedObject.uid={uid}")["items"]
    codes = [found[1] for it in events if (found := _CODE.search(it["message"]))]
    return codes[-1] if codes else ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_without_it_pods_end_and_doctor_says_as_the_row_has_it(
    cluster: Cluster, helm: Helm, whole: dict[str, Any], row: Row
) -> None:
    replace(cluster, whole, row)
    told = doctor(helm, comes=not row.doctor.startswith("("))
    asked = [
        pod("ann", annotations={KEY: "[{pool: rails, mode: exclusive, interface: {name: fab0, mtu: 3000}}]"}),
        pod("share", containers=[{"resources": {"limits": {"rdma/rdma_shared_device_a": 1}}}]),
        claiming(CLAIM, {"rdma": "nic"}),
    ]
    names = [it["metadata"]["name"] for it in asked]
    try:
        for it in asked:
            cluster.kubectl("create", "-f", "-", given=it)
        ended = outcomes(cluster, names)
    finally:
        replace(cluster, whole, None)  # with it the devices come home
        for name in names:
            delete(cluster, name)
    assert ended == [row.annotation, row.share, row.claim], told
    if row.doctor.startswith("("):
        assert "container not found" in told
    elif row.doctor:
        assert row.doctor in told
    else:
        assert "Nothing was changed" in told
        assert not re.search(r"[1-9]\d* problems?,", told), told
