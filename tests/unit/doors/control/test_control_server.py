"""Traces are chosen, asked for and fitted into a message."""

import time
from pathlib import Path

import pytest

from nri_rdma.doors.control.control_server import ControlServer, choose_spans, newest_within
from nri_rdma.doors.control.daemon_client import ask_trace
from nri_rdma.doors.control.node_document import SERVICE
from nri_rdma.observe.spans import Recorder
from nri_rdma.ttrpc import Client, Code, RpcError
from tests.unit.rigs.inside_daemon import InsideDaemon

PREFIX = "rdma.noderesource.dev"


def test_a_trace_is_asked_by_pod_uid_sandbox_or_name(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    daemon.start_pod("two", {PREFIX: "[{match: {device: mlx5_3}}]"})
    spans = [ask_trace(daemon.settings.control_path, "default/one")["spans"]]
    spans += [ask_trace(daemon.settings.control_path, word)["spans"] for word in ("one", "uid-one", "sandbox-one")]
    assert spans[0]
    assert all(it == spans[0] for it in spans)
    assert len(ask_trace(daemon.settings.control_path, "")["spans"]) > len(spans[0])
    assert ask_trace(daemon.settings.control_path, "three")["spans"] == []


def test_a_trace_says_how_far_back_the_daemon_remembers(daemon: InsideDaemon) -> None:
    def ring() -> dict[str, float]:
        return dict(ask_trace(daemon.settings.control_path, "")["ring"])

    started = ring()
    assert (started["spans"], started["capacity"]) == (0, 4096)
    assert abs(started["since"] - time.time()) < 60
    for number in range(4095):
        daemon.spans.span(f"step {number}").__enter__().__exit__(None, None, None)
    assert (ring()["spans"], ring()["since"]) == (4095, started["since"])
    for number in range(10):
        daemon.spans.span(f"step {number}").__enter__().__exit__(None, None, None)
    assert ring() == {**started, "spans": 4096, "since": daemon.spans.recent()[0].end_ns / 1e9}


@pytest.mark.parametrize("method", ["Verify", "Trace"])
def test_what_is_no_message_is_the_callers_fault(
    daemon: InsideDaemon, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with Client(daemon.settings.control_path) as client, pytest.raises(RpcError) as caught:
        client.call(SERVICE, method, b"\xff", timeout_s=5)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caplog.records == []


def test_spans_are_chosen_with_their_whole_trace() -> None:
    recorder = Recorder()
    with recorder.span("event", {"k8s.pod.name": "default/one"}), recorder.span("step"):
        pass
    with recorder.span("other"):
        pass
    assert [span.name for span in choose_spans(recorder.recent(), "one")] == ["event", "step"]


def test_a_trace_answer_fits_a_message_and_keeps_the_newest() -> None:
    texts = [f"{number:04d}" * 100 for number in range(100)]
    kept = newest_within(texts, 5000)
    assert sum(len(text) + 2 for text in kept) <= 5000
    assert list(kept) == texts[-len(kept) :]
    assert len(kept) == 12
    assert newest_within(texts, 1 << 20) == texts
    assert newest_within([], 10) == []
    assert [newest_within(["ab", "cd"], size) for size in (7, 8)] == [["cd"], ["ab", "cd"]]


def test_the_folder_of_its_socket_is_made_for_root_only_and_the_socket_goes_with_the_end(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "run/nri-rdma/control.sock"
    server = ControlServer(daemon.facts)
    server.serve(path)
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    server.close()
    assert not path.exists()
