"""Attachments in the status document: what they hold, which containers do not start, and what containers use."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.alignment import Alignment, Pair
from nri_rdma.decide.topology import Distance
from nri_rdma.doors.control import attachment_documents
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.engine.sandbox import Aligned
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.pod import Pod
from nri_rdma.pb import nri_pb2 as nri
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.doors.nri.door import SOON, Door, create, door, started
from tests.unit.rigs.inside_daemon import InsideDaemon

__all__ = ["door"]  # fixtures

PREFIX = "rdma.noderesource.dev"


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


def _start(runtime: FakeRuntime, pod: nri.PodSandbox) -> None:
    runtime.start_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))


def _unstarted(door: Door) -> list[dict[str, object]]:
    (sandbox,) = ask_status(door.inside.settings.control_path)["sandboxes"]
    found: list[dict[str, object]] = sandbox["unstarted"]
    return [{"container": it["container"], "answers": it["answers"]} for it in found]


def test_a_container_that_nobody_starts_is_told_when_it_is_asked_for_again(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """All that we see of a conflict with a plugin after us: the runtime refuses the container, and asks again."""
    runtime, pod = started(door)
    with caplog.at_level(logging.WARNING):
        create(runtime, pod)
        assert _unstarted(door) == []
        for _ in range(3):
            create(runtime, pod)
    told = [record for record in caplog.records if "did not start after our last answer" in record.message]
    assert [(record.__dict__["pod"], record.__dict__["container"]) for record in told] == [("default/one", "main")]
    assert _unstarted(door) == [{"container": "main", "answers": 4}]
    shown = nri_rdma("status", "--state-dir", door.inside.settings.state_dir, columns=120).stdout
    assert "WARNING: containers that nri-rdma prepared and that did not start; the pod's events say why" in shown
    _start(runtime, pod)
    assert _unstarted(door) == []
    runtime.close()


def test_a_container_that_crashes_and_starts_again_is_no_news(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime, pod = started(door)
    for _ in range(3):
        create(runtime, pod)
        _start(runtime, pod)
    assert "did not start" not in caplog.text
    runtime.close()


def test_a_container_that_waits_long_for_its_start_is_shown(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, pod = started(door)
    create(runtime, pod)
    monkeypatch.setattr(attachment_documents, "UNSTARTED_S", -1.0)
    assert _unstarted(door) == [{"container": "main", "answers": 1}]
    runtime.close()


def test_containers_of_a_list_of_pods_wait_for_no_start(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, pod = started(door)
    runtime.pods, runtime.containers = [pod], [nri.Container(id="c", pod_sandbox_id=pod.id, name="main")]
    runtime.disconnect()
    runtime.accept(SOON)
    wait_until(lambda: len(door.facts) == 2, "the list")
    monkeypatch.setattr(attachment_documents, "UNSTARTED_S", -1.0)
    assert _unstarted(door) == []
    runtime.close()


def test_an_attachment_that_nothing_is_planned_for_yet_holds_nothing() -> None:
    pod = Pod(sandbox_id="s", uid="u", name="train", namespace="ml", netns_path="/run/netns/x")
    assert attachment_documents.attachment_document(Attachment(pod, part="trainer")) == {
        "id": "s",
        "part": "trainer",
        "pod": "ml/train",
        "uid": "u",
        "state": "planned",
        "devices": [],
        "isolation": "",
        "moves": [],
        "gids": [],
        "gid_warnings": [],
        "undo_error": "",
        "unstarted": [],
        "proofs": [],
    }


def test_an_alignment_is_shown_by_its_farthest_pair_and_a_contradiction_before_a_problem() -> None:
    near, far = PciAddress(0, 0x18, 0, 0), PciAddress(0, 0xE1, 0, 0)
    pairs = (Pair(device="mlx5_0", gpu=near, far=Distance.PIX), Pair(device="mlx5_1", gpu=far, far=Distance.SYS))
    known = Alignment(gpus=(near, far), source="the kubelet", pairs=pairs, contradiction="others", problem="unknown")
    shown = attachment_documents.alignment_document(Aligned(pod="ml/train", container="main", alignment=known))
    assert shown == {
        "pod": "ml/train",
        "container": "main",
        "gpus": ["0000:18:00.0", "0000:e1:00.0"],
        "gpus_from": "the kubelet",
        "distance": "SYS",
        "pairs": [
            {"device": "mlx5_0", "gpu": "0000:18:00.0", "distance": "PIX"},
            {"device": "mlx5_1", "gpu": "0000:e1:00.0", "distance": "SYS"},
        ],
        "words": "mlx5_1 is SYS from GPU 0000:e1:00.0",
        "problem": "others",
    }
    bare = Aligned(
        pod="ml/train", container="main", alignment=Alignment(gpus=(), source="", pairs=(), problem="unknown")
    )
    shown = attachment_documents.alignment_document(bare)
    assert (shown["distance"], shown["problem"]) == (None, "unknown")
