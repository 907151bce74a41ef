"""What was refused lately: rows that count, a window, a bound; and a log line that names the pod."""

from dataclasses import replace
from typing import Any

import pytest

from nri_rdma.engine.refusals import KEPT, WINDOW_S, RefusedLately
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.engine import PREFIX
from tests.unit.rigs.engine_with_kubelet import Node, node, refusal, world

__all__ = ["node", "world"]  # fixtures


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lately(clock: Clock) -> RefusedLately:
    return RefusedLately(clock)


def error(code: ErrorCode = ErrorCode.DEVICES_EXHAUSTED, what: str = "asked 9, free 8") -> NriRdmaError:
    return PlacementError(code, what, hint="wait")


def test_refusals_of_one_pod_with_one_code_are_one_row(lately: RefusedLately, clock: Clock) -> None:
    pod = make_pod()
    for number in range(3):
        clock.now += 10
        lately.note("RunPodSandbox", replace(pod, sandbox_id=f"sandbox-{number}"), error(what=f"asked {number}"))
    lately.note("RunPodSandbox", pod, error(ErrorCode.POOL_MODE))
    lately.note("CreateContainer", pod, error(), "main")
    container, other, row = lately.rows()
    assert (row.pod, row.uid, row.sandbox, row.code, row.count) == (
        str(pod),
        pod.uid,
        "sandbox-2",
        "DEVICES-EXHAUSTED",
        3,
    )
    assert (row.first, row.last) == (1010.0, 1030.0)
    assert "asked 2" in row.error
    assert (other.code, other.count, container.call, container.container) == ("POOL-MODE", 1, "CreateContainer", "main")
    assert lately.by_code() == {"DEVICES-EXHAUSTED": 4, "POOL-MODE": 1}


def test_a_row_is_shown_for_ten_minutes_after_its_last_refusal_and_then_counts_anew(
    lately: RefusedLately, clock: Clock
) -> None:
    lately.note("RunPodSandbox", make_pod(), error())
    clock.now += WINDOW_S
    assert [row.count for row in lately.rows()] == [1]
    clock.now += 1
    assert lately.rows() == ()
    lately.note("RunPodSandbox", make_pod(), error())
    assert [(row.count, row.first) for row in lately.rows()] == [(1, clock.now)]


def test_however_many_pods_are_refused_only_the_latest_are_kept(lately: RefusedLately) -> None:
    for number in range(KEPT + 50):
        lately.note("RunPodSandbox", replace(make_pod(), name=f"job-{number}"), error())
    rows = lately.rows()
    assert (len(rows), lately.by_code()) == (KEPT, {"DEVICES-EXHAUSTED": KEPT + 50})
    assert rows[0].pod.endswith(f"/job-{KEPT + 49}")
    assert rows[-1].pod.endswith("/job-50")


def test_the_log_line_names_pod_call_and_code(lately: RefusedLately, caplog: pytest.LogCaptureFixture) -> None:
    pod = make_pod()
    lately.note("StartContainer", pod, error(), "main")
    record: Any = caplog.records[-1]
    assert (record.getMessage(), record.call, record.pod, record.uid) == (
        "refused",
        "StartContainer",
        str(pod),
        pod.uid,
    )
    assert (record.sandbox, record.container, record.code) == (pod.sandbox_id, "main", "DEVICES-EXHAUSTED")
    assert record.error.startswith("nri-rdma: DEVICES-EXHAUSTED: asked 9, free 8")


def test_a_bug_is_no_refusal(lately: RefusedLately) -> None:
    lately.note("CreateContainer", make_pod(), RuntimeError("a bug"))
    assert (lately.rows(), lately.by_code()) == ((), {})


def test_a_refusal_that_was_noted_is_not_logged_again_by_a_door(lately: RefusedLately) -> None:
    error = PlacementError(ErrorCode.DEVICES_EXHAUSTED, "asked 9, free 8", hint="ask for less")
    assert not error.is_logged
    lately.note("CreateContainer", make_pod(), error)
    assert error.is_logged


def test_the_engine_notes_what_it_refuses_whoever_asks(node: Node, world: World) -> None:
    """The pod asks for more than there is; then its containers come, although it was refused."""
    refusal(lambda: node.start(annotations={f"{PREFIX}/pod": "99"}))
    refusal(lambda: node.create("main", annotations={f"{PREFIX}/pod": "99"}))
    created, ran = node.engine.refused.rows()
    assert (ran.call, ran.code, ran.pod, ran.container) == (
        "RunPodSandbox",
        "DEVICES-EXHAUSTED",
        str(make_pod()),
        "",
    )
    assert (created.call, created.code, created.container) == ("CreateContainer", "NOT-ATTACHED", "main")


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_start_that_fails_while_its_sandbox_ends_fails_with_its_own_error(
    node: Node, world: World, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    if has_begun:
        node.start(annotations={f"{PREFIX}/pod": "1"})
    sandbox_id = make_pod().sandbox_id

    def fail(*_arguments: object) -> None:
        monkeypatch.setattr(node.engine.attachments, "of", lambda _sandbox_id: ())  # it has ended
        raise PlacementError(ErrorCode.NOT_ALIGNED, "far away", hint="come nearer")

    monkeypatch.setattr(node.engine.starts, "start", fail)
    with pytest.raises(PlacementError, match="NOT-ALIGNED: far away"):
        node.engine.start_container(sandbox_id, "main", "")
    assert [row.call for row in node.engine.refused.rows()] == ["StartContainer"] * has_begun
