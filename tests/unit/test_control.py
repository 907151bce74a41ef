"""What the daemon tells over its control socket."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.cli.gather import gather
from nri_rdma.commands.cli.node import read_local_node
from nri_rdma.commands.explain import explain
from nri_rdma.config.settings import Document, Memlock, Settings, load
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.client import ask_status, ask_trace
from nri_rdma.doors.control.document import node_document, node_from, policy_document, policy_from
from nri_rdma.doors.control.server import choose_spans, newest_within
from nri_rdma.doors.control.status import status_document
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from nri_rdma.ttrpc import Server
from tests.rig.node import load as load_node
from tests.rig.systree import build_tree
from tests.unit.commands.cli.daemon import MEMLOCK, InsideDaemon

PROJECT = Path(__file__).resolve().parents[2]
PREFIX = "rdma.noderesource.dev"


def test_status_tells_holders_sandboxes_and_moves(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    document = ask_status(daemon.settings.control_path)
    assert document["devices"][2]["holders"] == [{"pod": "default/one", "mode": "exclusive", "gpus": []}]
    assert document["devices"][2]["netdevs"] == []
    (sandbox,) = document["sandboxes"]
    assert (sandbox["pod"], sandbox["state"], sandbox["devices"]) == ("default/one", "attached", ["mlx5_2"])
    assert sandbox["moves"][0]["netdev"]["name"] == "rail2"
    assert sandbox["moves"][0]["pod_name"] == "rdma0"
    assert document["namespaces_held"] == 1
    assert document["memlock"]["bytes"] == MEMLOCK


def test_before_a_runtime_was_heard_of_there_is_no_ceiling_to_name(daemon: InsideDaemon) -> None:
    settings = replace(daemon.settings, memlock=Memlock(automatic=True))
    facts = replace(daemon.facts, settings=settings)
    facts.engine.placer.memlock = MemlockBounds()
    told = status_document(facts, started=0.0, guard={})["memlock"]
    assert (told["bytes"], told["reason"]) == (None, "no runtime has been heard of yet")


def test_status_tells_which_devices_each_pool_has_and_which_are_contested(daemon: InsideDaemon) -> None:
    settings = load({}, {}, Document(name="FILE", text=POOLS)).settings
    daemon.engine.placer.policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
    told = {pool["name"]: pool for pool in ask_status(daemon.settings.control_path)["pools"]}
    assert told["default"]["devices"] == ["mlx5_1", "mlx5_3"]
    assert told["gold"]["devices"] == ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]
    assert [pool["contested"] for pool in told.values()] == [["mlx5_2"], ["mlx5_2"]]


def test_status_tells_what_containers_use_and_may(daemon: InsideDaemon) -> None:
    daemon.make_cgroups("/pod/a", "/pod/b")
    pod = daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}, containers: [a]}]"})
    daemon.engine.container_created(pod.sandbox_id, "a", "/pod/a")
    daemon.engine.container_created(pod.sandbox_id, "b", "/pod/b")
    daemon.engine.container_created(pod.sandbox_id, "gone", "/pod/gone")
    unlimited = "mlx5_1 hca_handle=max hca_object=max \nmlx5_2 hca_handle=max hca_object=max \n"
    daemon.cgroup_file("/pod/a", "rdma.max").write_text(unlimited.replace("max \n", "40 \n"))
    daemon.cgroup_file("/pod/b", "rdma.max").write_text(unlimited)
    unused = unlimited.replace("max", "0")
    daemon.cgroup_file("/pod/a", "rdma.current").write_text(unused)
    daemon.cgroup_file("/pod/b", "rdma.current").write_text(unused)

    def rows() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = ask_status(daemon.settings.control_path)["rdma_use"]
        return rows

    assert rows()[1] == {
        "pod": "default/one",
        "sandbox": "sandbox-one",
        "container": "a",
        "device": "mlx5_2",
        "hca_handle": {"used": 0, "limit": None},
        "hca_object": {"used": 0, "limit": 40},
    }
    # mlx5_1 was not given to a, but it is limited; b has nothing, and uses nothing.
    assert [(row["container"], row["device"]) for row in rows()] == [("a", "mlx5_1"), ("a", "mlx5_2")]
    daemon.cgroup_file("/pod/b", "rdma.current").write_text(unused.replace("object=0", "object=3"))
    assert [row["container"] for row in rows()] == ["a", "a", "b", "b"]
    daemon.stop_pod(pod)
    assert rows() == []


def test_a_node_with_virtual_functions_survives_its_document(tmp_path: Path) -> None:
    build_tree(load_node("vf8"), tmp_path)
    node = read_local_node(Settings(sysfs_root=tmp_path, dev_root=tmp_path, cgroup_root=tmp_path)).node
    document = json.loads(json.dumps(node_document(node)))
    assert node_from(document) == node
    assert document["devices"][2]["virtual"] == {"pf": "0000:41:00.0", "number": 0, "pf_netdevs": ["ens1f0"]}


def test_a_node_survives_its_document(daemon: InsideDaemon) -> None:
    assert node_from(node_document(daemon.node)) == daemon.node
    assert node_from(ask_status(daemon.settings.control_path)) == daemon.node


@pytest.mark.parametrize("document", [{}, {"devices": [{}], "gpus": []}, {"devices": 3, "gpus": []}])
def test_a_document_without_a_node_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(NotReadyError):
        node_from(document)


def test_a_policy_survives_its_document() -> None:
    text = (PROJECT / "docs/examples/pools.toml").read_text()
    settings = load({}, {}, Document(name="FILE", text=text)).settings
    policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
    assert policy_from({"policy": json.loads(json.dumps(policy_document(policy)))}) == policy


def test_a_document_without_a_policy_is_refused() -> None:
    with pytest.raises(NotReadyError, match="the document has no policy"):
        policy_from({})


def test_a_trace_is_asked_by_pod_uid_sandbox_or_name(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    daemon.start_pod("two", {PREFIX: "[{match: {device: mlx5_3}}]"})
    spans = [ask_trace(daemon.settings.control_path, "default/one")["spans"]]
    spans += [ask_trace(daemon.settings.control_path, word)["spans"] for word in ("one", "uid-one", "sandbox-one")]
    assert spans[0]
    assert all(it == spans[0] for it in spans)
    assert len(ask_trace(daemon.settings.control_path, "")["spans"]) > len(spans[0])
    assert ask_trace(daemon.settings.control_path, "three")["spans"] == []


def test_spans_are_chosen_with_their_whole_trace() -> None:
    recorder = Recorder()
    with recorder.span("event", {"k8s.pod.name": "default/one"}), recorder.span("step"):
        pass
    with recorder.span("other"):
        pass
    assert [span.name for span in choose_spans(recorder.recent(), "one")] == ["event", "step"]


def test_nobody_there_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError) as caught:
        ask_status(tmp_path / "control.sock")
    assert caught.value.code is ErrorCode.DAEMON_ABSENT
    assert "nri-rdma run" in caught.value.hint


def test_a_daemon_of_another_version_is_told_apart(tmp_path: Path) -> None:
    answer = pb.StatusReply(json='{"version": 99}').SerializeToString()
    server = Server({("nri_rdma.control.v1.Control", "Status"): lambda _call: answer})
    server.serve_unix(tmp_path / "control.sock")
    try:
        with pytest.raises(NotReadyError, match="version 99 instead of 1"):
            ask_status(tmp_path / "control.sock")
    finally:
        server.close()


POOLS = """
[pools.default]
select = { numaNode = 0 }
exclude = { device = "mlx5_0" }
modes = ["exclusive", "shared"]
maxLimits = { hcaHandles = 2 }
[pools.gold]
select = [{ numaNode = 1 }, { device = "mlx5_2" }]
modes = ["shared"]
[[rules]]
name = "no sandboxes"
runtimeHandlers = ["kata"]
allow = false
[[rules]]
pools = ["gold"]
podLabels = { team = "ml" }
devices = ["umad", "uverbs"]
[[rules]]
pools = ["default"]
interface = ["mtu"]
"""


def test_a_running_pod_is_explained_as_if_it_started_anew(daemon: InsideDaemon) -> None:
    annotations = {PREFIX: "[{match: {device: mlx5_2}}]"}
    pod = daemon.start_pod("one", annotations)
    manifest = PodManifest(
        kind="Pod",
        namespace="default",
        name="one",
        annotations=annotations,
        containers=(ContainerManifest(name="a"),),
    )
    explanation = explain(manifest, gather(daemon.settings).facts)
    assert explanation.holds == ("mlx5_2",)
    assert explanation.containers[0].edits == daemon.edits(pod, annotations, "a")
    assert explain(replace(manifest, name="two"), gather(daemon.settings).facts).refusal is not None


def test_a_trace_answer_fits_a_message_and_keeps_the_newest() -> None:
    texts = [f"{number:04d}" * 100 for number in range(100)]
    kept = newest_within(texts, 5000)
    assert sum(len(text) + 2 for text in kept) <= 5000
    assert list(kept) == texts[-len(kept) :]
    assert len(kept) == 12
    assert newest_within(texts, 1 << 20) == texts
    assert newest_within([], 10) == []
