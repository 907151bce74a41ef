"""What a daemon that starts makes of the journal of an earlier one."""

import errno
from collections.abc import Callable
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment, Now, unchanged
from nri_rdma.attach.attempts import ATTEMPT_PAUSES_S
from nri_rdma.attach.port import KernelError, Namespace
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.states import Effect, Event
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.request import Mode
from tests.fakes.kernel import FaultyKernel, World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.attach.sandbox_life import (
    Start,
    assert_nothing_left,
    begin_attach,
    begin_often,
    end_sandbox,
    records_of,
    take_name,
)
from tests.unit.rigs.attachments import SOON, Rig, add_rail, await_taken_up, make_world, placed_on


def _recovered(start: Start, world: World) -> tuple[Rig, tuple[NriRdmaError, ...], list[str]]:
    rig = start(world)
    told: list[str] = []
    errors = rig.sandboxes.recover(lambda record: told.append(record.pod.sandbox_id))
    await_taken_up(rig)
    undos = [sandbox.undo_done for sandbox in rig.sandboxes.all() if sandbox.ends]
    assert not wait_for(undos, SOON).not_done
    return rig, errors, told


def test_what_was_attached_is_adopted(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    attached = _attach_and_kill(start, world)
    again, errors, told = _recovered(start, world)
    (sandbox,) = again.sandboxes.all()
    assert (errors, told, sandbox.state, again.watched) == ((), ["sandbox-1"], Phase.ATTACHED, [POD_PATH])
    assert sandbox.now.record == attached
    assert sandbox.attach_done.done()
    assert world.held == 1
    end_sandbox(again)
    assert world.snapshot() == before
    assert_nothing_left(again)


PLACES = ("before move-netdev", "after move-netdev", "after configure-netdev", "before resolve-numbers")


def _killed_at(start: Start, world: World, place: str, tmp_path: Path) -> None:
    """A daemon is killed in the middle of an attach."""
    rig = start(world)
    rig.gate.stop_at = place
    begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    journal, state = (tmp_path / "sandbox-1.json").read_bytes(), world.snapshot()
    rig.kernel = None
    rig.gate.fail_at = place
    _freeze(rig)  # a killed process does not roll back
    assert world.snapshot() == state
    (tmp_path / "sandbox-1.json").write_bytes(journal)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_half_attached_is_begun_anew(start: Start, place: str, tmp_path: Path) -> None:
    """The runtime has its answer, and the pod's containers come at any time."""
    world = make_world()
    before = world.snapshot()
    _killed_at(start, world, place, tmp_path)
    again, errors, told = _recovered(start, world)
    assert again.clock.wait_for_one() == ATTEMPT_PAUSES_S[0]
    assert (errors, told, world.snapshot(), again.gone) == ((), ["sandbox-1"], before, [])
    (sandbox,) = again.sandboxes.all()
    assert "this sandbox is being taken down" in sandbox.now.last_error
    again.clock.pass_one()
    assert sandbox.attach_done.result(SOON) is None
    assert (sandbox.state, world.snapshot(), records_of(again)) == (Phase.ATTACHED, {}, {"sandbox-1": Phase.ATTACHED})
    end_sandbox(again)
    assert (world.snapshot(), again.gone) == (before, ["sandbox-1"])
    assert_nothing_left(again)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_half_attached_goes_home_when_its_pod_is_gone(start: Start, place: str, tmp_path: Path) -> None:
    world = make_world(physical=True)
    before = world.snapshot()
    _killed_at(start, world, place, tmp_path)
    world.remove_namespace(POD_PATH)
    again, errors, told = _recovered(start, world)
    assert (errors, told, world.snapshot(), again.gone) == ((), ["sandbox-1"], before, ["sandbox-1"])
    assert_nothing_left(again)


def _attach_and_kill(start: Start, world: World) -> SandboxRecord:
    """A daemon attaches, and is killed; what it had attached."""
    rig = start(world)
    sandbox = begin_attach(rig)
    sandbox.attach_done.result(SOON)
    rig.kill()
    assert sandbox.now.record is not None
    return sandbox.now.record


def _freeze(rig: Rig) -> None:
    """End the process where it stands: its kernel answers no more."""
    rig.work._kernel = FaultyKernel(rig.fake, fail_at=1, crash=True)
    rig.kill()


def test_what_an_earlier_daemon_left_is_taken_up_when_it_is_said_and_waits_until_then(start: Start) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    (sandbox,) = again.sandboxes.all()
    assert sandbox.taken_up is not None
    again.workers.submit("sandbox-1", lambda: None).result(SOON)
    assert (sandbox.state, world.held, sandbox.taken_up.done()) == (Phase.PLANNED, 0, False)
    again.sandboxes.take_up()
    sandbox.taken_up.result(SOON)
    assert (sandbox.state, world.held) == (Phase.ATTACHED, 1)
    end_sandbox(again)


def test_a_container_that_no_runtime_lists_is_taken_up_at_once(start: Start) -> None:
    world = make_world()
    first = start(world)
    pod = replace(make_pod(), is_listed=False)
    first.sandboxes.begin(pod, placed_on(world, "rail0"), None).attach_done.result(SOON)
    first.kill()
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    (sandbox,) = again.sandboxes.all()
    assert sandbox.taken_up is not None
    sandbox.taken_up.result(SOON)
    assert (sandbox.state, world.held) == (Phase.ATTACHED, 1)
    again.sandboxes.take_up()
    assert sandbox.state is Phase.ATTACHED
    end_sandbox(again)


def test_what_ends_before_it_was_taken_up_comes_home_all_the_same(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    _attach_and_kill(start, world)
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    end_sandbox(again)
    again.sandboxes.take_up()
    assert (world.snapshot(), again.gone) == (before, ["sandbox-1"])
    assert_nothing_left(again)


def test_an_adopted_sandbox_is_not_seen_attached_before_its_numbers_are_to_be_read_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    seen: list[bool] = []
    step = Attachment.step

    def watched(
        sandbox: Attachment, event: Event, change: Callable[[Now], Now] = unchanged
    ) -> tuple[Effect, ...] | None:
        if event is Event.THERE:
            seen.append(sandbox.now.looked_again is not None)
        return step(sandbox, event, change)

    monkeypatch.setattr(Attachment, "step", watched)
    again, _, _ = _recovered(start, world)
    assert seen == [True]
    end_sandbox(again)


def test_a_namespace_that_cannot_be_opened_just_now_is_not_taken_for_gone(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    again = start(world)
    open_namespace = again.fake.open_namespace

    def refuse(_path: str) -> Namespace:
        raise KernelError("open the network namespace", errno.EMFILE)

    again.fake.open_namespace = refuse  # type: ignore[method-assign,assignment]  # no descriptor is left
    again.sandboxes.recover(lambda _record: None)
    again.clock.wait_for_one()
    (sandbox,) = again.sandboxes.all()
    assert (sandbox.ends, records_of(again)) == (False, {"sandbox-1": Phase.ATTACHED})
    (told,) = (vars(it) for it in caplog.records if it.message == "earlier attachment not checked, trying again")
    assert (told["error"], told["exc_info"]) == ("open the network namespace: EMFILE", None)  # the kernel's, no bug
    assert sandbox.now.undo_error == ""  # nothing is to be undone
    again.fake.open_namespace = open_namespace  # type: ignore[method-assign]  # as it was
    again.clock.pass_one()
    await_taken_up(again)
    assert (sandbox.state, world.held) == (Phase.ATTACHED, 1)
    end_sandbox(again)


def test_what_ends_while_its_namespace_cannot_be_opened_comes_home_when_it_can(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    _attach_and_kill(start, world)
    again = start(world)
    open_namespace = again.fake.open_namespace

    def refuse(_path: str) -> Namespace:
        raise KernelError("open the network namespace", errno.EMFILE)

    again.fake.open_namespace = refuse  # type: ignore[method-assign,assignment]  # no descriptor is left
    again.sandboxes.recover(lambda _record: None, later=True)
    done = again.sandboxes.end("sandbox-1")
    assert done is not None
    again.clock.wait_for_one()
    assert (done.done(), records_of(again)) == (False, {"sandbox-1": Phase.ATTACHED})
    assert [it.now.undo_error for it in again.sandboxes.all()] == ["open the network namespace: EMFILE"]
    again.fake.open_namespace = open_namespace  # type: ignore[method-assign]  # as it was
    while not done.done():
        again.clock.pass_one()
        wait_until(lambda: done.done() or again.clock.pending, "the end, or another pause", SOON)
    assert world.snapshot() == before
    assert_nothing_left(again)


def test_an_attempt_that_is_undone_to_be_tried_again_is_begun_anew_by_the_next_daemon(start: Start) -> None:
    """The sandbox lives on: its record must not say that it ends."""
    rig = start(make_world())
    rig.gate.fail_at = "after configure-netdev"
    rig.gate.stop_at = "before undo"
    begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    assert records_of(rig) == {"sandbox-1": Phase.ATTACHING}
    rig.gate.fail_at = ""
    rig.gate.open.set()


def test_half_a_record_that_an_earlier_daemon_left_is_removed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sandbox-9.new").write_text("{")
    _recovered(start, make_world())
    assert list(tmp_path.iterdir()) == []


def test_what_was_half_way_home_is_not_adopted(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig, "rail0", "rail1").attach_done.result(SOON)
    free = take_name(world, "rail0")
    rig.sandboxes.end("sandbox-1")
    rig.clock.wait_for_one()
    rig.kill()
    free()
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == before
    assert_nothing_left(again)


@pytest.mark.parametrize("physical", [True, False])
def test_a_sandbox_whose_namespace_is_gone_is_undone(
    start: Start, physical: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = make_world(physical=physical)
    before = world.snapshot()
    _attach_and_kill(start, world)
    world.remove_namespace(POD_PATH)
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == (before if physical else {})
    assert "attaching again after an interrupted attach" not in caplog.messages
    assert_nothing_left(again)


def test_another_namespace_at_the_same_path_is_not_ours(start: Start) -> None:
    world = make_world(physical=True)
    before = world.snapshot()
    _attach_and_kill(start, world)
    world.remove_namespace(POD_PATH)
    others = world.add_link(world.add_namespace(POD_PATH), "rdma0", ifindex=2)
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == before
    assert others.name == "rdma0"
    assert_nothing_left(again)


def test_shared_devices_of_a_pod_that_is_gone_are_not_adopted(start: Start) -> None:
    world = make_world()
    rig = start(world)
    begin_attach(rig, mode=Mode.SHARED).attach_done.result(SOON)
    rig.kill()
    world.remove_namespace(POD_PATH)
    again, _, _ = _recovered(start, world)
    assert_nothing_left(again)


def test_records_of_another_boot_are_forgotten_and_touch_nothing(start: Start) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    later = make_world()
    later.boot_id = "boot-2"
    next(iter(later.host.links.values())).mtu = 9000
    before = later.snapshot()
    again, errors, told = _recovered(start, later)
    assert (errors, told, later.snapshot()) == ((), [], before)
    assert_nothing_left(again)


def test_a_record_that_cannot_be_read_is_set_aside_and_the_others_are_taken_up(start: Start, tmp_path: Path) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    text = (tmp_path / "sandbox-1.json").read_text()
    (tmp_path / "sandbox-9.json").write_text(text)
    (tmp_path / "changed.json").write_text(text.replace("rail0", "rail9"))
    again, errors, told = _recovered(start, world)
    assert [error.code for error in errors] == [ErrorCode.STATE_UNREADABLE] * 4
    assert told == ["sandbox-1"]
    aside = {path.name for path in tmp_path.glob("*.unreadable")}
    assert aside == {f"{name}.unreadable" for name in ("broken", "folder", "sandbox-9", "changed")}
    end_sandbox(again)


def test_what_the_journal_keeps_is_what_was_known(start: Start) -> None:
    rig = start(make_world())
    sandbox = begin_attach(rig)
    sandbox.attach_done.result(SOON)
    (record,), _ = rig.journal.load()
    assert record == sandbox.now.record
    assert sandbox.now.record is not None
    assert replace(record, state=Phase.ATTACHED) == sandbox.now.record


def test_status_says_of_what_nobody_has_looked_at_yet_what_the_journal_says(start: Start) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    (sandbox,) = again.sandboxes.all()
    assert (sandbox.state, sandbox.shown) == (Phase.PLANNED, Phase.ATTACHED)
    again.sandboxes.take_up()
    await_taken_up(again)
    end_sandbox(again)


@pytest.mark.parametrize("bugs", [1, 2])
def test_a_bug_while_it_is_taken_up_keeps_nobody_waiting_and_is_tried_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bugs: int
) -> None:
    world = make_world()
    _attach_and_kill(start, world)
    again = start(world)
    find = again.work.find

    left = [RuntimeError("a bug")] * bugs

    def stumble(sandbox: Attachment) -> Event:
        if left:
            raise left.pop()
        return find(sandbox)

    monkeypatch.setattr(again.work, "find", stumble)
    again.sandboxes.recover(lambda _record: None)
    (sandbox,) = again.sandboxes.all()
    assert sandbox.taken_up is not None
    assert isinstance(sandbox.taken_up.exception(SOON), RuntimeError)
    for _ in range(bugs):
        again.clock.pass_one()
    sandbox.attach_done.result(SOON)
    end_sandbox(again)
    told = [vars(it) for it in caplog.records if it.message == "earlier attachment not checked, trying again"]
    assert [(it["pod"], it["error"], it["exc_info"] is not None) for it in told] == [("ml/train", "a bug", True)] * bugs
