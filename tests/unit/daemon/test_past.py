"""What a daemon did and refused is there after its end, whatever its end was."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.daemon.past import Past
from nri_rdma.engine.refusals import KEPT, RefusedLately
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder, Span
from tests.rig.deadline import wait_until

POD = Pod(sandbox_id="sandbox-1", uid="uid-1", name="one", namespace="default", netns_path="")
SOON = 0.001


class Life:
    """A daemon's memory, from its start to its end."""

    def __init__(self, folder: Path, capacity: int = 4096, pause_s: float = SOON) -> None:
        self.spans, self.refused = Recorder(capacity), RefusedLately()
        self.past = Past(folder, self.spans, self.refused, pause_s=pause_s)
        self.past.begin()

    def attach(self, name: str = "RunPodSandbox", error: str = "") -> Span:
        with self.spans.span(name, {"k8s.pod.name": "default/one", "place": 3, "is": True}) as outer:
            outer.links = ((1, 2),)
            with self.spans.span("attach") as inner:
                inner.error = error
        return outer

    def refuse(self, pod: Pod = POD) -> None:
        self.refused.note("RunPodSandbox", pod, PlacementError(ErrorCode.DEVICES_EXHAUSTED, "asked 99"))


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[list[Life]]:
    """Daemons one after the other; `end` them by closing the last."""
    made: list[Life] = []
    yield made
    for life in made:
        life.past.close()


FIELDS = ("name", "trace_id", "span_id", "parent_id", "start_ns", "end_ns", "attributes", "error", "links")


def fields(span: Span) -> tuple[object, ...]:
    return tuple(getattr(span, name) for name in FIELDS)


def test_spans_and_refusals_of_before_are_there(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(first := Life(tmp_path))
    first.attach(error="EBUSY")
    first.refuse()
    first.refuse()
    first.past.close()
    lives.append(second := Life(tmp_path))
    assert [*map(fields, second.spans.recent())] == [*map(fields, first.spans.recent())]
    assert second.refused.rows() == first.refused.rows()
    assert second.refused.rows()[0].count == 2
    assert second.refused.by_code() == {}, "a counter begins with the process"


def test_a_daemon_that_is_killed_has_written_all_but_the_last_moment(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(first := Life(tmp_path))
    first.attach()
    first.refuse()
    written = tmp_path / "past.jsonl"
    wait_until(lambda: written.exists() and written.read_bytes().count(b"\n") == 3, "all of it")
    lives.append(second := Life(tmp_path))
    assert [span.name for span in second.spans.recent()] == ["attach", "RunPodSandbox"]
    assert [row.pod for row in second.refused.rows()] == ["default/one"]


def test_each_thing_is_written_once(tmp_path: Path, lives: list[Life]) -> None:
    for number in range(1, 4):
        lives.append(life := Life(tmp_path))
        life.attach(f"event-{number}")
        life.refuse()
        life.past.close()
        assert [it.name for it in life.spans.recent()][1::2] == [f"event-{it}" for it in range(1, number + 1)]
        assert life.refused.rows()[0].count == number
    assert (tmp_path / "past.jsonl").read_bytes().count(b"\n") == 9


def test_more_spans_than_are_remembered_are_no_error(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(first := Life(tmp_path, capacity=10))
    for _ in range(100):
        first.attach()
    for number in range(KEPT + 10):
        first.refuse(Pod(sandbox_id="s", uid="u", name=f"p{number}", namespace="default", netns_path=""))
    first.past.close()
    lives.append(second := Life(tmp_path, capacity=10))
    assert [*map(fields, second.spans.recent())] == [*map(fields, first.spans.recent())]
    assert second.refused.rows() == first.refused.rows()
    assert len(second.refused.rows()) == KEPT


def test_with_the_setting_tracing_off_refusals_stay(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(first := Life(tmp_path, capacity=0))
    first.attach()
    first.refuse()
    first.past.close()
    lives.append(second := Life(tmp_path, capacity=0))
    assert (second.spans.recent(), len(second.refused.rows())) == ((), 1)


NO_NUMBER = b'{"span":{"name":"a","trace":"x","span":"1","parent":"0","start":0,"end":0}}'


@pytest.mark.parametrize(
    "line", [b"{", b"[]", pytest.param(b"[" * 100_000, id="deep"), b"{}", b'{"span":{}}', NO_NUMBER]
)
def test_a_line_of_another_release_is_told(
    tmp_path: Path, lives: list[Life], line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    lives.append(first := Life(tmp_path))
    first.attach()
    first.past.close()
    with (tmp_path / "past.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with caplog.at_level(logging.ERROR):
        lives.append(second := Life(tmp_path))
    assert [record.getMessage() for record in caplog.records] == [
        "what an earlier daemon did cannot all be read, its file is put aside"
    ]
    assert len(second.spans.recent()) == 2
    assert (tmp_path / "past.jsonl.unreadable").exists()


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, lives: list[Life], caplog: pytest.LogCaptureFixture
) -> None:
    lives.append(life := Life(tmp_path / "missing"))
    for _ in range(3):
        life.attach()
    wait_until(lambda: bool(caplog.records), "the warning")
    life.past.close()
    assert [record.getMessage() for record in caplog.records] == ["what is done is not kept for the next daemon"]


def test_the_level_debug_has_each_step_with_its_time_and_reason(
    tmp_path: Path, lives: list[Life], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        lives.append(life := Life(tmp_path, pause_s=60))
        with life.spans.span("RunPodSandbox", {"k8s.pod.name": "default/one"}):
            with life.spans.span("place", {"reason": "mlx5_0: lowest index of 8 free"}):
                pass
            with life.spans.span("move-netdev", {"rdma.device": "mlx5_0", "step": "move rail0"}) as moved:
                moved.error = "EBUSY"
        life.past.close()
    steps = [record for record in caplog.records if record.getMessage() == "step done"]
    told = [{key: getattr(it, key, None) for key in ("step", "pod", "reason", "rdma.device", "error")} for it in steps]
    place = {"step": "place", "reason": "mlx5_0: lowest index of 8 free", "rdma.device": None, "error": None}
    move = {"step": "move-netdev", "reason": None, "rdma.device": "mlx5_0", "error": "EBUSY"}
    event = {"step": "RunPodSandbox", "reason": None, "rdma.device": None, "error": None}
    assert told == [it | {"pod": "default/one"} for it in (place, move, event)]
    assert all(0 <= it.ms < 1000 for it in steps)  # type: ignore[attr-defined]  # an extra field


def test_who_serves_a_pod_writes_nothing(tmp_path: Path, lives: list[Life]) -> None:
    lives.append(life := Life(tmp_path))
    before = {thread.name for thread in threading.enumerate()}
    assert "past" in before
    life.past.close()
    life.attach()
    assert not (tmp_path / "past.jsonl").exists()


def test_a_name_that_is_no_utf_8_is_kept(tmp_path: Path, lives: list[Life]) -> None:
    name = os.fsdecode(b"rail\xff")  # as host/netlink/links/link_state.py passes it
    lives.append(first := Life(tmp_path))
    with first.spans.span("attach", {"rdma.netdevs": name}):
        pass
    wait_until((tmp_path / "past.jsonl").exists, "the line")
    first.attach("later")
    first.past.close()
    lives.append(second := Life(tmp_path))
    assert [it.name for it in second.spans.recent()] == ["attach", "attach", "later"]
    assert second.spans.recent()[0].attributes == {"rdma.netdevs": name}


def test_a_step_that_cannot_be_written_is_told_and_the_next_ones_are_kept(
    tmp_path: Path, lives: list[Life], caplog: pytest.LogCaptureFixture
) -> None:
    lives.append(first := Life(tmp_path))
    for value in (object(), 1j):
        with first.spans.span("odd", {"number": value}):  # type: ignore[dict-item]  # that is what is odd
            pass
        wait_until(lambda: bool(caplog.records), "the error")
        first.attach("later")
    first.past.close()
    lives.append(second := Life(tmp_path))
    assert [it.name for it in second.spans.recent()] == ["attach", "later"] * 2
    assert {record.getMessage() for record in caplog.records} == {"a step cannot be kept for the next daemon"}
