"""The daemons of a chart are replaced by pods that clear their nodes, by a real HTTP server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.leave.cluster import clearing, leave_cluster
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.kubernetes.api import ApiServer
from tests.rig.api_server import Server, running, send

DAEMON: dict[str, Any] = {
    "name": "nri-rdma",
    "image": "registry/nri-rdma@sha256:0",
    "env": [{"name": "NRI_RDMA_STATE_DIR", "value": "/run/nri-rdma"}],
    "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}},
    "readinessProbe": {"httpGet": {"port": 9178}},
    "startupProbe": {"httpGet": {"port": 9178}},
    "volumeMounts": [
        {"name": "host-dir", "mountPath": "/var/lib/nri-rdma", "readOnly": True},
        {"name": "sys", "mountPath": "/sys", "readOnly": True},
    ],
}
DAEMONS = {
    "spec": {"template": {"spec": {"containers": [{"name": "sidecar"}, DAEMON], "initContainers": [{"name": "copy"}]}}}
}


def test_the_daemon_is_replaced_by_a_container_that_clears_the_node_first() -> None:
    spec = clearing(DAEMONS, "/var/lib/nri-rdma")["spec"]["template"]["spec"]
    (clears,), (waits,) = spec["initContainers"], spec["containers"]
    assert clears["args"] == ["uninstall", "node", "--host-dir", "/var/lib/nri-rdma"]
    assert {it["mountPath"]: it["readOnly"] for it in clears["volumeMounts"]} == {
        "/var/lib/nri-rdma": False,
        "/sys": True,
    }
    assert (clears["env"], clears["image"]) == (DAEMON["env"], DAEMON["image"])
    assert not [key for key in (*clears, *waits) if key.endswith("Probe")]
    assert "volumeMounts" not in waits
    assert DAEMON["volumeMounts"][0]["readOnly"] is True, "the DaemonSet that was read is not changed"


class Cluster:
    """Two DaemonSets and a slice behind a real HTTP server. `clears`: whether their pods clear their nodes."""

    def __init__(self, server: Server) -> None:
        self.sets = {name: _daemons(name) for name in ("a", "b")}
        self.pods: list[dict[str, Any]] = []
        self.clears = True
        self.fails = 0
        self.refused: set[tuple[str, int]] = set()
        """The writes that fail, each by its DaemonSet and its number for that one, from 1."""
        self.writes = Counter[str]()
        server.answer = self._answer

    def _answer(self, handler: Any, seen: Any) -> bool:
        kind, _, name = seen.path.partition("daemonsets")
        if not name:
            items = list(self.sets.values()) if kind != seen.path else self.pods if seen.path == "/api/v1/pods" else []
            if seen.path.endswith("resourceslices"):
                items = [{"metadata": {"name": "n1-slice"}}]
            return send(handler, 200, {"items": items}) if seen.method == "GET" else send(handler, 200, {})
        found = self.sets[name.strip("/")]
        if seen.method == "PATCH":
            self.writes[found["metadata"]["name"]] += 1
            if (found["metadata"]["name"], self.writes[found["metadata"]["name"]]) in self.refused:
                return send(handler, 503, {"message": "etcdserver: leader changed"})
            found["spec"] = {**found["spec"], **seen.body["spec"]}
            found["metadata"]["generation"] += 1
        elif self.fails:
            self.fails -= 1
            return send(handler, 500, {"message": "busy"})
        elif self.clears:
            found["status"] |= {"observedGeneration": found["metadata"]["generation"]}
        return send(handler, 200, found)


def _daemons(name: str) -> dict[str, Any]:
    status = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberReady": 2}
    return {**json.loads(json.dumps(DAEMONS)), "metadata": {"name": name, "generation": 1}, "status": status} | {
        "spec": {**json.loads(json.dumps(DAEMONS["spec"])), "updateStrategy": {"type": "RollingUpdate"}}
    }


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as found:
        yield found


def leave(server: Server, folder: Path, within_s: float = 60.0, said: list[str] | None = None) -> list[str]:
    api, said = ApiServer(server.kubeconfig(folder)), [] if said is None else said
    try:
        leave_cluster(api, "nri-rdma", "rdma.noderesource.dev", (), "/var/lib/nri-rdma", within_s, said.append)
    finally:
        api.close()
    return said


def test_every_node_is_cleared_before_the_slices_go(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(server)
    cluster.fails = 2
    said = leave(server, tmp_path)
    assert said == ["a: its nodes are cleared", "b: its nodes are cleared", "ResourceSlice n1-slice is deleted"]
    for found in cluster.sets.values():
        assert found["spec"]["template"]["spec"]["initContainers"][0]["name"] == "clear-node"
    assert [it.path.rpartition("/")[2] for it in server.writes] == ["a", "b", "n1-slice"]


def test_where_a_node_is_not_cleared_the_daemons_run_again_and_the_slices_stay(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(server)
    before = json.loads(json.dumps({name: it["spec"] for name, it in cluster.sets.items()}))
    cluster.clears, said = False, list[str]()
    with pytest.raises(NriRdmaError, match=r"nodes were not cleared within 0 s: 0 of 2"):
        leave(server, tmp_path, within_s=0.1, said=said)
    assert said == ["a: its daemons are started again", "b: its daemons are started again"]
    assert {name: it["spec"] for name, it in cluster.sets.items()} == before
    assert "n1-slice" not in {it.path.rpartition("/")[2] for it in server.writes}


def test_daemons_run_again_although_the_api_server_fails_once_more(server: Server, tmp_path: Path) -> None:
    cluster, said = Cluster(server), list[str]()
    before = json.loads(json.dumps({name: it["spec"] for name, it in cluster.sets.items()}))
    cluster.refused = {("b", 1), ("a", 2)}  # b is not cleared, and a is not restored at once
    with pytest.raises(NriRdmaError, match=r"503 to PATCH, .*/daemonsets/b"):
        leave(server, tmp_path, said=said)
    assert said == ["a: its daemons are started again", "b: its daemons are started again"]
    assert {name: it["spec"] for name, it in cluster.sets.items()} == before


def test_daemons_that_start_when_their_pods_are_deleted_are_not_said_to_run(server: Server, tmp_path: Path) -> None:
    """A DaemonSet with OnDelete does not replace the pods that clear their nodes."""
    cluster, said = Cluster(server), list[str]()
    cluster.clears = False
    cluster.sets["a"]["spec"]["updateStrategy"] = {"type": "OnDelete"}
    with pytest.raises(NriRdmaError, match="were not cleared"):
        leave(server, tmp_path, within_s=0.1, said=said)
    assert said == [
        "a: its daemons start again when its pods are deleted, as its updateStrategy OnDelete has it",
        "b: its daemons are started again",
    ]


def test_daemons_that_cannot_be_started_again_are_named_and_the_others_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.commands.leave.cluster._RESTORE_S", 0.0)
    cluster, said = Cluster(server), list[str]()
    cluster.clears, cluster.refused = False, {("a", number) for number in range(2, 9)}
    with pytest.raises(NriRdmaError, match="were not cleared"):
        leave(server, tmp_path, within_s=0.1, said=said)
    assert said == [
        "a: its daemons are not started again, which `helm rollback --force-conflicts` does: the API server answers 503"
        " to PATCH",
        "b: its daemons are started again",
    ]


def test_the_daemonsets_of_a_preflight_that_was_broken_off_are_left_alone(server: Server, tmp_path: Path) -> None:
    """Their pods write nothing on the nodes, and the chart's Job may not change them."""
    Cluster(server)
    leave(server, tmp_path)
    (asked,) = (it.query for it in server.seen if it.path.endswith("/daemonsets"))
    assert asked["labelSelector"] == ["app.kubernetes.io/name=nri-rdma,app.kubernetes.io/component!=preflight"]


def test_a_pod_that_has_devices_refuses_before_anything_is_written(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(server)
    annotations = {"rdma.noderesource.dev/pod": "1"}
    metadata = {"namespace": "default", "name": "trainer", "annotations": annotations}
    cluster.pods = [{"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}]
    with pytest.raises(NriRdmaError, match="1 pods have devices, or wait for some: default/trainer on n1"):
        leave(server, tmp_path)
    assert server.writes == []


def test_an_uninstall_that_was_broken_off_goes_on(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(server)
    cluster.sets["a"]["spec"] |= clearing(cluster.sets["a"], "/var/lib/nri-rdma")["spec"]
    assert leave(server, tmp_path)[-1] == "ResourceSlice n1-slice is deleted"
    assert [it.path.rpartition("/")[2] for it in server.writes] == ["b", "n1-slice"]


def test_daemons_that_an_earlier_uninstall_ended_are_not_said_to_run_again(server: Server, tmp_path: Path) -> None:
    cluster, said = Cluster(server), list[str]()
    cluster.sets["a"]["spec"] |= clearing(cluster.sets["a"], "/var/lib/nri-rdma")["spec"]
    cluster.sets["a"]["status"]["numberReady"], cluster.clears = 0, False
    with pytest.raises(NriRdmaError, match="were not cleared"):
        leave(server, tmp_path, within_s=0.1, said=said)
    assert said == [
        "a: its pods go on to clear their nodes, as after the earlier uninstall",
        "b: its daemons are started again",
    ]
    assert [it.path.rpartition("/")[2] for it in server.writes] == ["b", "b"]
