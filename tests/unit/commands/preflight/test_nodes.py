"""What doctor's pods tell of the nodes of a cluster, by a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.doctor.finding import Finding, Result
from nri_rdma.commands.preflight.nodes import CLUSTER, KIND, LABEL, examine_nodes, rows
from nri_rdma.host.kubernetes.api import ApiServer
from tests.rig.api_server import Server, running, send

RUNS: dict[str, Any] = {"containerStatuses": [{"state": {"running": {"startedAt": "now"}}}]}
OK = {"check": "kernel", "result": "ok", "found": "Linux", "fix": ""}
BAD = {"check": "devices", "result": "problem", "found": "no RDMA device", "fix": "load a driver"}
OLD = {"check": "daemon", "result": "problem", "found": "disconnected", "fix": "see the log"}


class Nodes:
    """DaemonSets with their pods, and what each pod's log says."""

    def __init__(self, server: Server) -> None:
        self.sets: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.logs: dict[str, list[str]] = {}
        server.answer = self._answer

    def kind(self, name: str, wanted: int) -> None:
        self.sets.append(
            {
                "metadata": {"uid": f"of {name}", "generation": 1},
                "spec": {"selector": {"matchLabels": {KIND: name}}},
                "status": {"observedGeneration": 1, "desiredNumberScheduled": wanted},
            }
        )

    def pod(self, node: str, *logs: str, kind: str = "a", status: dict[str, Any] | None = None) -> None:
        name = f"{kind}-{node}"
        self.logs[name] = list(logs)
        metadata = {"name": name, "labels": {KIND: kind}, "ownerReferences": [{"uid": f"of {kind}"}]}
        self.pods.append({"metadata": metadata, "spec": {"nodeName": node}, "status": status or RUNS})

    def _answer(self, handler: Any, seen: Any) -> bool:
        if seen.path.endswith("/log"):
            logs = self.logs[seen.path.split("/")[-2]]
            return send(handler, 200, (logs.pop(0) if len(logs) > 1 else logs[0]).encode())
        assert seen.query["labelSelector"] == [LABEL]
        return send(handler, 200, {"items": self.pods if seen.path.endswith("/pods") else self.sets})


def log(*checks: dict[str, str]) -> str:
    return json.dumps({"version": 1, "checks": checks}, indent=2) + "\n"


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(server.kubeconfig(tmp_path))
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def nodes(server: Server) -> Nodes:
    return Nodes(server)


def found(api: ApiServer, within_s: float = 20) -> dict[str, list[str]]:
    told = examine_nodes(api, "rdma", ("daemon",), within_s)
    return {node: [f"{it.result} {it.check}: {it.found}" for it in findings] for node, findings in told.items()}


def test_every_node_has_what_its_doctor_found_but_for_checks_that_do_not_count(api: ApiServer, nodes: Nodes) -> None:
    nodes.kind("a", 2)
    nodes.pod("n1", log(OK, OLD))
    nodes.pod("n2", "", "warned: {", "a line of a log\n" + log(BAD))
    assert found(api) == {"n1": ["ok kernel: Linux"], "n2": ["problem devices: no RDMA device"], CLUSTER: []}


def test_pods_of_an_earlier_preflight_do_not_count(api: ApiServer, nodes: Nodes) -> None:
    nodes.kind("a", 1)
    nodes.pod("n1", log(OK))
    nodes.pod("n1", log(BAD), kind="earlier")
    assert found(api) == {"n1": ["ok kernel: Linux"], CLUSTER: []}


def test_a_node_without_an_answer_has_a_problem_with_what_the_kubelet_says(api: ApiServer, nodes: Nodes) -> None:
    nodes.kind("a", 3)
    nodes.pod("n1", log(OK))
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    nodes.pod("n2", status={"containerStatuses": [{"state": {"waiting": waiting}}]})
    assert found(api, within_s=0) == {
        "n1": ["ok kernel: Linux"],
        "n2": ["problem preflight: pod a-n2 does not answer: ImagePullBackOff no such image"],
        CLUSTER: ["problem preflight: nodes of kind a on which no pod was made: 1"],
    }


def test_a_pod_without_a_node_is_told_with_what_the_scheduler_says(api: ApiServer, nodes: Nodes) -> None:
    nodes.kind("a", 1)
    unplaced = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}
    nodes.pod("n1", status={"phase": "Pending", "conditions": [unplaced]})
    del nodes.pods[0]["spec"]["nodeName"]
    assert found(api, within_s=0) == {CLUSTER: ["problem preflight: pod a-n1 does not answer: Insufficient memory"]}


def test_a_node_of_two_kinds_has_a_problem_and_a_kind_without_nodes_a_warning(api: ApiServer, nodes: Nodes) -> None:
    for kind, wanted in (("a", 1), ("b", 1), ("c", 0)):
        nodes.kind(kind, wanted)
    nodes.pod("n1", log(OK))
    nodes.pod("n1", log(OK), kind="b")
    assert found(api) == {
        "n1": [*["ok kernel: Linux"] * 2, "problem nodes: the node is of 2 kinds (a, b), but can have only one daemon"],
        CLUSTER: ["warning nodes: no node is of kind c"],
    }


def test_nodes_with_the_same_finding_have_one_row_and_problems_come_first() -> None:
    warned, bad, good = (Finding(check="c", result=it, found="f") for it in (Result.WARNING, Result.PROBLEM, Result.OK))
    found = {"n2": (good, warned), "n1": (warned, bad, warned), "n3": (good,)}
    assert rows(found) == [(bad, ["n1"]), (warned, ["n1", "n2"])]
