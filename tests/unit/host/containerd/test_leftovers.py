"""What containerd leaves of a sandbox that we refused is removed, and nothing else, whatever containerd does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.host.containerd.containerd_api import Containerd, ContainerdError
from nri_rdma.host.containerd.leftovers import Leftovers, Look, by_hand, look
from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder
from tests.fakes.containerd import CONTAINER, FakeContainerd, Mode
from tests.rig.deadline import wait_until
from tests.rig.kubelet import rude

ID, OTHER = "0a" * 32, "0b" * 32
SOON = 10.0
PAUSES_S = (0.01, 0.02, 0.03)
SHORT_S = 0.2
"""A call's time, where the test is about its end."""


@pytest.fixture
def containerd() -> Iterator[FakeContainerd]:
    with FakeContainerd() as running:
        yield running


@pytest.fixture
def spans() -> Recorder:
    return Recorder()


@pytest.fixture
def notes(tmp_path: Path) -> RefusalNotes:
    return RefusalNotes(tmp_path / "refused")


Make = Callable[..., Leftovers]


@pytest.fixture
def make(containerd: FakeContainerd, spans: Recorder, notes: RefusalNotes) -> Iterator[Make]:
    """Makes one for that containerd; closes it after the test."""
    made = []

    def made_with(
        socket: Path | None = containerd.socket, pauses_s: tuple[float, ...] = PAUSES_S, call_s: float = SOON
    ) -> Leftovers:
        connect = partial(Containerd, call_s=call_s)
        made.append(Leftovers(socket, spans, notes, pauses_s=pauses_s, connect=connect))
        return made[-1]

    yield made_with
    for leftovers in made:
        leftovers.close(SOON)


def pod(sandbox_id: str = ID) -> Pod:
    return Pod(sandbox_id=sandbox_id, uid="uid", name="late", namespace="default", netns_path="/run/netns/x", pid=7)


def look_at(containerd: FakeContainerd, call_s: float = SOON) -> Look:
    with Containerd(containerd.socket, call_s=call_s) as connection:
        return look(connection, ID)


# One look


def test_what_is_left_is_shut_down_by_containerd_itself(containerd: FakeContainerd) -> None:
    containerd.add_left(ID)
    containerd.add_left(OTHER)
    assert look_at(containerd) is Look.REMOVED
    assert (containerd.shut_down, list(containerd.containers), containerd.processes) == ([ID], [OTHER], {OTHER})


def test_what_is_gone_needs_nothing(containerd: FakeContainerd) -> None:
    assert look_at(containerd) is Look.GONE
    assert containerd.shut_down == []


@pytest.mark.parametrize("labels", [CONTAINER, {}, {"io.cri-containerd.kind": "Sandbox"}, {"other": "sandbox"}])
def test_a_record_that_is_no_sandboxs_is_left_alone(containerd: FakeContainerd, labels: dict[str, str]) -> None:
    containerd.containers[ID] = labels
    assert look_at(containerd) is Look.NO_SANDBOX
    assert containerd.shut_down == []


def test_a_sandbox_that_containerd_has_in_its_list_is_left_alone(containerd: FakeContainerd) -> None:
    """It starts still, or runs: our answer came too late, and containerd went on without us."""
    containerd.add_running(ID)
    assert look_at(containerd) is Look.LISTED
    assert containerd.shut_down == []


@pytest.mark.parametrize("when", ["Store/Get", "Controller/Shutdown"])
def test_a_record_that_goes_while_we_look_is_gone(containerd: FakeContainerd, when: str) -> None:
    containerd.add_left(ID)
    containerd.before = lambda method: containerd.containers.clear() if method == when else None
    assert look_at(containerd) is Look.REMOVED


def test_a_record_that_stays_after_the_end_is_an_error(containerd: FakeContainerd) -> None:
    containerd.add_left(ID)
    containerd.mode = Mode.FORGETS
    with pytest.raises(ContainerdError, match="its record still exists"):
        look_at(containerd)


def test_a_containerd_without_that_controller_is_an_error(containerd: FakeContainerd) -> None:
    containerd.add_left(ID)
    containerd.controller = "another"
    with pytest.raises(ContainerdError, match="it has no controller podsandbox"):
        look_at(containerd)


def test_an_error_of_containerd_is_told_in_its_words(containerd: FakeContainerd) -> None:
    containerd.mode = Mode.FAILS
    with pytest.raises(ContainerdError, match="UNKNOWN: database not open") as caught:
        look_at(containerd)
    assert not caught.value.is_absent


def test_an_answer_that_is_no_message_is_an_error(containerd: FakeContainerd) -> None:
    containerd.mode = Mode.TALKS_NONSENSE
    with pytest.raises(ContainerdError, match="no message of this API"):
        look_at(containerd)


def test_a_containerd_that_hangs_is_given_up_in_time(containerd: FakeContainerd) -> None:
    containerd.mode = Mode.HANGS
    began = time.monotonic()
    with pytest.raises(ContainerdError, match="DEADLINE_EXCEEDED"):
        look_at(containerd, SHORT_S)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("name", ["nothing", "file", "x" * 120])
def test_a_path_that_is_no_socket_is_nobody(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ContainerdError) as caught:
        Containerd(tmp_path / name)
    assert caught.value.is_absent


def test_a_listener_that_speaks_otherwise_is_nobody(containerd: FakeContainerd) -> None:
    containerd.stop()
    with rude(containerd.socket, b"HTTP/1.1 400 Bad Request\r\n\r\n"), pytest.raises(ContainerdError) as caught:
        look_at(containerd)
    assert caught.value.is_absent


# The thread


def test_a_refused_sandbox_is_cleaned_up_in_a_span_below_its_refusal(
    containerd: FakeContainerd, make: Make, spans: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    containerd.add_left(ID)
    with spans.span("RunPodSandbox") as refusal:
        make().refused(pod())
    wait_until(lambda: "removed what containerd left" in caplog.text, "the end of the sandbox", SOON)
    wait_until(lambda: len(spans.recent()) == 2, "the span's end", SOON)
    span = spans.recent()[-1]
    assert (span.name, span.parent_id, span.attributes["result"]) == ("clean up", refusal.span_id, "removed")
    assert (span.attributes["k8s.pod.name"], span.attributes["sandbox"]) == ("default/late", ID)
    assert not containerd.containers


def test_containerds_own_end_of_the_sandbox_is_waited_for(containerd: FakeContainerd, make: Make) -> None:
    containerd.add_running(ID)
    looks = 0

    def fail_at_the_second_look(method: str) -> None:
        nonlocal looks
        looks += method == "Store/Get"
        if looks == 2:
            containerd.sandboxes.clear()

    containerd.before = fail_at_the_second_look
    make().refused(pod())
    wait_until(lambda: not containerd.containers, "the end of the sandbox", SOON)
    assert looks == 2


def test_a_sandbox_that_runs_although_we_refused_it_is_never_touched(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    containerd.add_running(ID)
    make().refused(pod())
    wait_until(lambda: "check whether CRI lists it" in caplog.text, "the last look", SOON)
    assert containerd.calls.count(("Store/Get", ID)) == len(PAUSES_S)
    assert containerd.shut_down == []


def test_what_fails_is_tried_again(containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    containerd.add_left(ID)
    containerd.mode = Mode.FAILS

    def recover(_method: str) -> None:
        if len(containerd.calls) == 2:
            containerd.mode = Mode.ANSWERS

    containerd.before = recover
    make().refused(pod())
    wait_until(lambda: not containerd.containers, "the end of the sandbox", SOON)
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("mode", "error"), [(Mode.HANGS, "DEADLINE_EXCEEDED"), (Mode.FAILS, "database"), (Mode.FORGETS, "still exists")]
)
def test_what_fails_for_good_is_told_with_the_commands_for_a_person(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture, mode: Mode, error: str
) -> None:
    containerd.add_left(ID)
    containerd.mode = mode
    make(call_s=SHORT_S if mode is Mode.HANGS else SOON).refused(pod())
    record = wait_until(lambda: next(iter(warnings(caplog)), None), "the warning", SOON)
    assert "containerd keeps what is left of a refused sandbox" in record.message
    assert error in vars(record)["error"]
    assert vars(record)["next"] == by_hand(ID)
    assert (vars(record)["pod"], vars(record)["sandbox"]) == ("default/late", ID)


def test_a_containerd_that_is_being_started_anew_is_asked_again_and_nobody_is_alarmed(
    containerd: FakeContainerd, make: Make, spans: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    containerd.stop()
    containerd.add_left(ID)
    make(pauses_s=(0.01, SHORT_S, SOON)).refused(pod())
    wait_until(lambda: len(spans.recent()) == 1, "a look in vain", SOON)
    containerd.start()
    wait_until(lambda: not containerd.containers, "the end of the sandbox", SOON)
    assert warnings(caplog) == []


def test_a_socket_that_is_never_there_is_told_of_each_sandbox(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    containerd.stop()
    leftovers = make()
    for sandbox_id in (ID, OTHER):
        leftovers.refused(pod(sandbox_id))
    wait_until(lambda: len(warnings(caplog)) == 2, "both warnings", SOON)
    for record, sandbox_id in zip(warnings(caplog), (ID, OTHER), strict=True):
        assert "containerd cannot be asked" in record.message
        assert "see containerd_socket" in record.message
        assert str(containerd.socket) in vars(record)["error"]
        assert vars(record)["next"] == by_hand(sandbox_id)


def test_what_a_containerd_that_was_started_anew_lists_is_not_touched(
    containerd: FakeContainerd, make: Make, spans: Recorder
) -> None:
    """It knows the container again, and has no entry of a start under way: as for something that is left."""
    containerd.add_left(ID)
    containerd.add_left(OTHER)
    leftovers = make(pauses_s=(SHORT_S,))
    for sandbox_id in (ID, OTHER):
        leftovers.refused(pod(sandbox_id))
    leftovers.listed({ID})
    wait_until(lambda: len(spans.recent()) == 1, "the only look", SOON)
    leftovers.close(SOON)
    assert containerd.shut_down == [OTHER]


def test_what_comes_to_be_listed_during_a_look_is_not_looked_at_again(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    containerd.add_running(ID)
    leftovers = make()
    containerd.before = lambda _method: leftovers.listed({ID})
    leftovers.refused(pod())
    wait_until(lambda: ("Store/Get", ID) in containerd.calls, "the look", SOON)
    leftovers.close(SOON)
    assert containerd.calls.count(("Store/Get", ID)) == 1
    assert warnings(caplog) == []


def test_a_process_that_may_have_no_more_threads_refuses_all_the_same(
    containerd: FakeContainerd, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    leftovers = make()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        leftovers.refused(pod())
    assert vars(warnings(caplog)[-1])["next"] == by_hand(ID)
    containerd.add_left(OTHER)
    leftovers.refused(pod(OTHER))
    wait_until(lambda: not containerd.containers, "the end of the next one", SOON)


def test_no_more_wait_than_there_is_room_for(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nri_rdma.host.containerd.leftovers.MAX_WAITING", 1)
    leftovers = make(pauses_s=(3600.0,))
    for sandbox_id in (ID, OTHER):
        leftovers.refused(pod(sandbox_id))
    (record,) = warnings(caplog)
    assert vars(record)["next"] == by_hand(OTHER)


def test_a_socket_that_may_be_another_containerds_is_told_once(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    leftovers = make()
    for sandbox_id in (ID, OTHER):
        leftovers.refused(pod(sandbox_id))
    wait_until(lambda: len(containerd.calls) == 2, "both looks", SOON)
    leftovers.close(SOON)
    assert caplog.text.count("containerd_socket is another containerd's") == 1


def test_nobody_waits_for_a_containerd_that_hangs(containerd: FakeContainerd, make: Make, spans: Recorder) -> None:
    containerd.mode = Mode.HANGS
    leftovers = make()
    leftovers.refused(pod())
    wait_until(lambda: bool(containerd.calls), "the call that hangs", SOON)
    leftovers.refused(pod(OTHER))
    assert spans.recent() == (), "the call hangs still"
    containerd.mode = Mode.ANSWERS
    wait_until(lambda: ("Containers/Get", OTHER) in containerd.calls, "the next one's turn", SOON)


def test_the_end_takes_a_last_look_at_what_waits(containerd: FakeContainerd, make: Make) -> None:
    containerd.add_left(ID)
    containerd.add_left(OTHER)
    leftovers = make(pauses_s=(3600.0,))
    for sandbox_id in (ID, OTHER):
        leftovers.refused(pod(sandbox_id))
    leftovers.close(SOON)
    assert not containerd.containers
    leftovers.refused(pod())
    leftovers.close(SOON)
    assert containerd.shut_down == [ID, OTHER]


def test_the_end_waits_for_containerds_own_end_of_the_sandbox(containerd: FakeContainerd, make: Make) -> None:
    containerd.add_running(ID)
    containerd.before = lambda _method: containerd.sandboxes.clear() if len(containerd.calls) == 4 else None
    leftovers = make(pauses_s=(3600.0,))
    leftovers.refused(pod())
    leftovers.close(SOON)
    assert not containerd.containers


def test_the_end_tells_of_a_sandbox_that_containerd_has_not_given_up(
    containerd: FakeContainerd, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    containerd.add_running(ID)
    leftovers = make(pauses_s=(3600.0,))
    leftovers.refused(pod())
    leftovers.close(SHORT_S)
    record = wait_until(lambda: next(iter(warnings(caplog)), None), "the warning", SOON)
    assert ("the daemon ends while" in record.message, containerd.shut_down) == (True, [])


def test_the_end_does_not_wait_for_a_containerd_that_has_gone(containerd: FakeContainerd, make: Make) -> None:
    """A runtime that starts the daemon ends while it, and its next one waits for the daemon's locks."""
    containerd.stop()
    leftovers = make(pauses_s=(3600.0,))
    leftovers.refused(pod())
    began = time.monotonic()
    leftovers.close(SOON)
    assert time.monotonic() - began < SOON / 2


def test_the_end_does_not_wait_for_a_containerd_that_hangs(containerd: FakeContainerd, make: Make) -> None:
    containerd.mode = Mode.HANGS
    leftovers = make(pauses_s=(3600.0,))
    leftovers.refused(pod())
    began = time.monotonic()
    leftovers.close(SHORT_S)
    assert time.monotonic() - began < SOON / 2
    containerd.stop()


def test_without_a_socket_and_without_a_refusal_there_is_no_thread(make: Make) -> None:
    before = set(threading.enumerate())
    make()
    make(socket=None).refused(pod())
    assert set(threading.enumerate()) <= before


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Its own: threads of other tests may warn meanwhile."""
    return [it for it in caplog.records if it.levelno >= logging.WARNING and it.name == Leftovers.__module__]


# After a daemon that was killed


def test_the_next_daemon_goes_on_with_what_was_refused(
    containerd: FakeContainerd, make: Make, notes: RefusalNotes
) -> None:
    make(pauses_s=(600.0,)).refused(pod())  # and is killed: nothing closes it
    containerd.add_left(ID)
    make().resume()
    wait_until(lambda: containerd.shut_down == [ID], "the end of the sandbox", SOON)
    wait_until(lambda: notes.read() == (), "the note's end", SOON)


def test_what_is_done_is_not_noted_any_more(containerd: FakeContainerd, make: Make, notes: RefusalNotes) -> None:
    leftovers = make()
    containerd.add_left(ID)
    containerd.add_running(OTHER)
    leftovers.refused(pod(ID))
    leftovers.refused(pod(OTHER))
    assert len(notes.read()) == 2
    wait_until(lambda: notes.read() == (), "the notes' end", SOON)
    assert containerd.shut_down == [ID]


def test_a_sandbox_that_the_runtime_lists_again_is_the_kubelets(
    containerd: FakeContainerd, make: Make, notes: RefusalNotes
) -> None:
    notes.add(pod(ID))
    leftovers = make(pauses_s=(600.0,))
    leftovers.resume()
    leftovers.listed({ID})
    assert notes.read() == ()
    leftovers.close(SOON)
    assert containerd.shut_down == []
