"""The attaches that CDI devices bring about: late ones that meet others, fail, or come after the end; their names in
the journal; what a daemon that starts anew makes of them."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.containers import KEPT_CONTAINERS
from nri_rdma.commands.dryrun.run import attached_by_daemon
from nri_rdma.config.settings import Settings
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.inject import HINT_VARIABLES
from nri_rdma.doors.control.node_document import SERVICE
from nri_rdma.engine.late import ATTEMPTS
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.waits import Waits
from nri_rdma.pb import control_pb2
from nri_rdma.ttrpc import Server
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.attach.sandbox_life import take_name
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import (
    CLAIM_A,
    CLAIM_B,
    MOVE,
    NIC,
    OTHER_PATH,
    SHARED,
    Calls,
    Node,
    container_message,
    daemon_on,
    names,
    node,
    on_host,
    refusal,
    sandbox_message,
    spec,
    world,
)

__all__ = ["node", "world"]

SLOW_S = 0.05
"""The deadline of a container whose attach is kept from going on."""


class Watched(Future[None]):
    """Ends as another future does. `on_wait` is called each time that somebody begins to wait for it."""

    def __init__(self, inner: Future[None], on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait
        inner.add_done_callback(self._end)

    def result(self, timeout: float | None = None) -> None:
        self._on_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._on_wait()
        return super().exception(timeout)

    def _end(self, inner: Future[None]) -> None:
        error = inner.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(None)


def occupy(node: Node) -> Callable[[], None]:
    """Both workers are busy, so that what comes next stays planned, until the result is called."""
    go = threading.Event()

    def work() -> None:
        assert go.wait(SOON)

    for number in range(2):
        node.rig.workers.submit(f"busy-{number}", work)
    return go.set


def not_ready_or(work: Callable[[], ContainerEdits]) -> ContainerEdits | None:
    """What a container gets; None when it is told to come again."""
    try:
        return work()
    except NriRdmaError as told:
        assert told.code is ErrorCode.NOT_READY
        return None


# A claim's second container, while the attach for the first one has not begun


def assert_never_bare(
    node: Node, part: Attachment, go: Callable[[], None], create: Callable[[], ContainerEdits]
) -> None:
    """A container that comes while `part` is planned waits, or is told to come again; in the end it is served."""
    part.attach_done = Watched(part.attach_done, go)  # the attach goes on, and ends, as soon as somebody waits for it
    edits = not_ready_or(create)
    assert edits is None or edits.rdma_max
    go()
    part.attach_done.result(SOON)
    assert create().rdma_max


def test_another_container_of_a_claim_never_starts_without_while_the_attach_has_not_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.engine.barrier.BARRIER_PAUSE_S", 0.0)  # the kubelet's next attempt
    node.specify(spec(NIC, 0, keys=MOVE))
    go = occupy(node)
    assert refusal(lambda: node.create("trainer", 0, seconds=SLOW_S)).code is ErrorCode.NOT_READY
    (part,) = node.rig.sandboxes.of("sandbox-1")
    assert_never_bare(node, part, go, lambda: node.create("helper", 0))


def test_an_init_container_never_starts_without_while_the_attach_has_not_begun(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.engine.barrier.BARRIER_PAUSE_S", 0.0)
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "trainer", NIC)  # which never tells of init containers
    go = occupy(node)
    node.start(annotations={}, seconds=SLOW_S)
    assert_never_bare(node, node.sandbox(), go, lambda: node.create("init", 0, cdi=(NIC,)))


def test_what_a_container_has_from_another_claim_already_is_not_attached_again(node: Node) -> None:
    node.specify(spec(CLAIM_A, 0, keys=MOVE), spec(CLAIM_B, 1, keys=MOVE))
    node.kubelet.give(make_pod(), "main", CLAIM_A)
    node.start(annotations={})
    node.create("main", 0, 1, cdi=(CLAIM_A, CLAIM_B))
    parts = node.rig.sandboxes.of("sandbox-1")
    assert [sorted(it.now.cdi_devices) for it in parts] == [[CLAIM_A], [CLAIM_B]]


def test_a_claim_that_a_container_was_not_given_is_kept_from_it_though_its_attach_was_under_way(node: Node) -> None:
    """The kubelet lists a container with all claims of its pod."""
    node.specify(spec(CLAIM_A, 0, keys=MOVE), spec(CLAIM_B, 1, keys=MOVE))
    node.kubelet.give(make_pod(), "main", CLAIM_A, CLAIM_B)
    node.rig.gate.stop_at = "before plan"
    node.start(annotations={}, seconds=SLOW_S)
    assert node.rig.gate.reached.wait(SOON)
    opener = threading.Timer(0.05, node.rig.gate.open.set)
    opener.start()
    edits = node.create("main", 0, cdi=(CLAIM_A,))
    assert [it for it in names(edits) if it.startswith("RDMA_")] == ["RDMA_DEVICES_CLAIM_A", "RDMA_NETDEVS_CLAIM_A"]
    opener.join()


def test_for_a_claim_that_is_only_observed_nothing_is_attached(node: Node) -> None:
    node.specify(spec(NIC, 0))
    node.start(annotations={})
    assert node.create("main", 0, cdi=(NIC,)).char_devices == ()
    assert [it.what for it in node.seen()] == [NIC]
    assert node.rig.sandboxes.all() == ()


# A late attach that fails


def test_a_late_attach_that_fails_as_its_container_stops_waiting_refuses_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    gate, begin = node.rig.gate, node.rig.sandboxes.begin
    gate.stop_at = gate.fail_at = "before move-netdev"

    def begin_watched(*args: object) -> Attachment:
        sandbox = begin(*args)  # type: ignore[arg-type]  # passed on as they are

        def time_out() -> None:
            if not gate.open.is_set():
                gate.open.set()
                assert sandbox.attach_done.exception(SOON) is not None
                raise TimeoutError

        sandbox.attach_done = Watched(sandbox.attach_done, time_out)
        return sandbox

    monkeypatch.setattr(node.rig.sandboxes, "begin", begin_watched)
    refusal(lambda: node.create("trainer", 0))
    assert not node.holders


def test_a_container_is_told_why_the_last_attach_for_it_failed(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = node.rig.gate.fail_at = "before move-netdev"
    assert refusal(lambda: node.create("trainer", 0, seconds=SLOW_S)).code is ErrorCode.NOT_READY
    (part,) = node.rig.sandboxes.of("sandbox-1")
    node.rig.gate.open.set()
    assert part.attach_done.exception(SOON) is not None
    node.rig.workers.submit("sandbox-1", lambda: None).result(SOON)
    assert world.snapshot() == before
    node.rig.gate.open.clear()  # another attempt would take long, too
    assert "injected before move-netdev" in str(refusal(lambda: node.create("trainer", 0, seconds=SLOW_S)))


def test_a_late_attach_that_ends_well_after_its_container_was_told_to_come_again_is_no_failure(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = "before move-netdev"
    refusal(lambda: node.create("trainer", 0, seconds=SLOW_S))
    node.rig.gate.open.set()
    node.rig.workers.submit("sandbox-1", lambda: None).result(SOON)
    assert node.create("trainer", 0).rdma_max


def test_a_late_attach_that_the_end_of_its_sandbox_stops_is_not_remembered(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = "before move-netdev"
    refusal(lambda: node.create("trainer", 0, seconds=SLOW_S))
    (part,) = node.rig.sandboxes.of("sandbox-1")
    node.stop(seconds=SLOW_S)
    node.rig.gate.open.set()
    assert part.attach_done.exception(SOON) is not None
    node.rig.workers.submit("sandbox-1", lambda: None).result(SOON)
    assert node.engine.sandboxes.all() == ()


def test_another_container_of_a_claim_whose_attach_failed_comes_again(node: Node, world: World) -> None:
    """It is no sandbox that ends: the next attempt is made when the devices are home."""
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = node.rig.gate.fail_at = "after move-netdev"
    refusal(lambda: node.create("trainer", 0, seconds=SLOW_S))
    free = take_name(world, "rail0")
    (part,) = node.rig.sandboxes.of("sandbox-1")
    node.rig.gate.open.set()
    assert part.attach_done.exception(SOON) is not None
    for told in [refusal(partial(node.create, name, 0)) for name in ("trainer", "helper")]:
        assert told.code is ErrorCode.NOT_READY
        assert "is being undone" in str(told)
    free()


def test_a_failure_is_told_once_before_the_next_attempt(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    known = node.engine.sandboxes.take(make_pod().sandbox_id)
    for _ in range(ATTEMPTS - 1):
        known.remember_late_failure("trainer", "it is stuck")
    told = refusal(lambda: node.create("trainer", 0))
    assert (told.code, told.hint) == (ErrorCode.ATTACH_FAILED, "nothing to do: it is tried again")
    assert "it is stuck" in str(told)
    assert node.create("trainer", 0).rdma_max  # the next attempt


def test_the_last_failure_is_told_each_time(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    known = node.engine.sandboxes.take(make_pod().sandbox_id)
    for _ in range(ATTEMPTS):
        known.remember_late_failure("trainer", "it is stuck")
    for _ in range(2):
        told = refusal(lambda: node.create("trainer", 0))
        assert "it is stuck" in str(told)
        assert "tried again" not in told.hint


# A sandbox that has ended


def test_a_sandbox_that_was_stopped_gets_no_devices_any_more(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.create("trainer", 0)
    node.stop()
    assert refusal(lambda: node.create("helper", 0)).code is ErrorCode.RETURNING
    assert not node.holders
    assert world.snapshot() == before


def test_a_sandbox_that_held_nothing_and_was_stopped_gets_no_devices_either(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    calls, pod = Calls(node), sandbox_message(make_pod())
    calls.run(pod)
    calls.end(pod)
    assert refusal(lambda: calls.create(pod, container_message("late", 0))).code is ErrorCode.RETURNING
    assert not node.holders


def test_the_new_sandbox_of_a_pod_gets_its_claim_late_when_the_old_one_still_has_it(node: Node, world: World) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.start(annotations={})
    node.create("trainer", 0)
    again = make_pod("sandbox-9", path=OTHER_PATH)
    node.start(again, annotations={})
    assert node.create("trainer", 0, cdi=(NIC,), pod=again).rdma_max
    assert not node.engine.knows("sandbox-1")
    node.stop("sandbox-9")
    assert world.snapshot() == before


# Names of containers in the journal

LONG = "a" * 250
NO_FILE_NAMES = pytest.mark.parametrize(
    "name",
    [
        pytest.param("a/b", id="with a slash"),
        pytest.param("..", id="two dots"),
        pytest.param(LONG, id="250 characters"),
        pytest.param("\N{LATIN SMALL LETTER E WITH ACUTE}" * 200, id="400 bytes"),
        pytest.param("", id="empty"),
    ],
)


@NO_FILE_NAMES
def test_a_container_whose_name_is_no_file_name_is_served_and_its_device_comes_home(
    node: Node, world: World, name: str
) -> None:
    before = world.snapshot()
    node.specify(spec(NIC, 0, keys=MOVE))
    node.start(annotations={})
    assert node.create(name, 0).rdma_max
    assert "rail0" not in on_host(world)
    node.stop()
    assert not node.holders
    assert world.snapshot() == before


@NO_FILE_NAMES
def test_a_daemon_that_starts_anew_takes_up_the_attach_of_such_a_container(
    world: World, tmp_path: Path, name: str
) -> None:
    before = world.snapshot()
    with daemon_on(world, tmp_path, spec(NIC, 0, keys=MOVE)) as first:
        edits = first.create(name, 0)
    with daemon_on(world, tmp_path, spec(NIC, 0, keys=MOVE)) as second:
        assert second.create(name, 0) == edits
        second.stop()
    assert world.snapshot() == before


@pytest.mark.parametrize(
    ("one", "other"), [("a/b", "a_b"), (LONG + "x", LONG + "y"), ("", ".1")], ids=["slash", "long", "empty"]
)
def test_containers_whose_names_are_alike_have_an_attach_of_their_own_each(
    world: World, tmp_path: Path, one: str, other: str
) -> None:
    before = world.snapshot()
    specs = (spec(CLAIM_A, 0, keys=MOVE), spec(CLAIM_B, 1, keys=MOVE))
    with daemon_on(world, tmp_path, *specs) as first:
        edits = (first.create(one, 0, cdi=(CLAIM_A,)), first.create(other, 1, cdi=(CLAIM_B,)))
        assert [dict(it.env)["NCCL_IB_HCA"] for it in edits] == ["=mlx5_0", "=mlx5_1"]
    with daemon_on(world, tmp_path, *specs) as second:
        assert (second.create(one, 0, cdi=(CLAIM_A,)), second.create(other, 1, cdi=(CLAIM_B,))) == edits
        second.stop()
        assert not second.holders
    assert world.snapshot() == before


# One device in several claims of a pod


@pytest.mark.parametrize(
    "modes", [("exclusive", "shared"), ("shared", "exclusive"), ("exclusive", "exclusive")], ids="-".join
)
def test_a_device_that_one_claim_of_a_pod_has_alone_is_not_attached_for_another(
    node: Node, world: World, modes: tuple[str, str]
) -> None:
    before = world.snapshot()
    node.specify(spec(CLAIM_A, 0, keys=f"mode: {modes[0]}"), spec(CLAIM_B, 0, keys=f"mode: {modes[1]}"))
    node.kubelet.give(make_pod(), "one", CLAIM_A)
    node.kubelet.give(make_pod(), "two", CLAIM_B)
    assert refusal(lambda: node.start(annotations={})).code is ErrorCode.DEVICE_CONFLICT
    assert not node.holders
    assert world.snapshot() == before


@pytest.mark.parametrize("is_late", [False, True], ids=["told at the start", "found when it is made"])
def test_two_shared_claims_of_a_pod_on_one_device_are_both_served(node: Node, is_late: bool) -> None:
    node.specify(spec(CLAIM_A, 0, keys=SHARED), spec(CLAIM_B, 0, keys=SHARED))
    node.kubelet.give(make_pod(), "one", CLAIM_A)
    node.kubelet.give(make_pod(), "two", CLAIM_B)
    node.kubelet.is_late = is_late
    node.start(annotations={})
    one, two = node.create("one", 0, cdi=(CLAIM_A,)), node.create("two", 0, cdi=(CLAIM_B,))
    assert names(one) == [*HINT_VARIABLES, "RDMA_DEVICES_CLAIM_A"]
    assert names(two) == [*HINT_VARIABLES, "RDMA_DEVICES_CLAIM_B"]
    node.stop()
    assert not node.holders


# What the runtime cannot do


@pytest.mark.parametrize("is_told", [True, False], ids=["told at the start", "found when it is made"])
@pytest.mark.parametrize("code", [ErrorCode.RUNTIME_TOO_OLD, ErrorCode.MEMLOCK_LIMIT])
def test_a_claims_memlock_that_the_runtime_does_not_set_is_refused_as_an_annotations_is(
    node: Node, code: ErrorCode, is_told: bool
) -> None:
    if code is ErrorCode.RUNTIME_TOO_OLD:
        node.engine.offering.memlock = MemlockBounds(dropped_by="containerd 1.7.0")
    else:
        node.engine.offering.memlock = MemlockBounds(ceiling=4096)
    node.specify(spec(NIC, 0, keys=MOVE))
    if is_told:
        node.kubelet.give(make_pod(), "trainer", NIC)
        assert refusal(lambda: node.start(annotations={})).code is code
    else:
        node.start(annotations={})
        assert refusal(lambda: node.create("trainer", 0)).code is code
    assert not node.holders


# A daemon that was away


def test_a_daemon_that_starts_anew_takes_up_what_came_early_and_what_came_late(world: World, tmp_path: Path) -> None:
    with daemon_on(world, tmp_path, spec(NIC, 1, keys=MOVE)) as first:
        first.start(annotations=ONE)
        edits = first.create("main", 1, annotations=ONE)
        assert [it.part for it in first.rig.sandboxes.of("sandbox-1")] == ["", "main"]
    with daemon_on(world, tmp_path, spec(NIC, 1, keys=MOVE)) as second:
        assert second.create("main", 1, annotations=ONE) == edits


def test_a_dry_run_knows_all_that_the_daemon_attached_for_a_sandbox_early_and_late(tmp_path: Path) -> None:
    sandboxes = [{"id": "s", "part": "", "devices": ["mlx5_0"]}, {"id": "s", "part": "c", "devices": ["mlx5_1"]}]
    status = json.dumps({"version": 1, "sandboxes": sandboxes})
    daemon = Server({(SERVICE, "Status"): lambda _call: control_pb2.StatusReply(json=status).SerializeToString()})
    settings = Settings(control_socket=tmp_path / "control.sock")
    daemon.serve_unix(settings.control_path)
    try:
        assert sorted(attached_by_daemon(settings)["s"]) == ["mlx5_0", "mlx5_1"]
    finally:
        daemon.close()


# Another attempt


def test_an_attempt_that_finds_its_spec_gone_holds_nothing_and_the_claim_is_attached_when_its_container_comes(
    node: Node,
) -> None:
    pod = make_pod()
    node.engine.barrier.waits = Waits(barrier_s=SOON)
    node.specify(spec(NIC, 0, own=MOVE))
    node.kubelet.give(pod, "main", NIC)
    node.rig.gate.fail_at = "after move-netdev"
    node.start(pod, {})
    node.rig.clock.wait_for_one()
    assert node.holders == {"mlx5_0"}
    node.rig.gate.fail_at = ""
    node.specify()
    node.rig.clock.pass_one()
    node.sandbox().attach_done.result(SOON)
    assert node.holders == set()
    node.specify(spec(NIC, 0, own=MOVE))
    assert node.create("main", 0, cdi=(NIC,)).rdma_max
    assert node.holders == {"mlx5_0"}


def test_the_newest_failures_and_answers_of_a_sandbox_are_remembered_however_many_there_were(node: Node) -> None:
    known = node.engine.sandboxes.take(make_pod().sandbox_id)
    for number in range(KEPT_CONTAINERS + 1):
        known.remember_late_failure(f"c{number}", "no")
        known.remember_answer(f"c{number}", f"/pods/c{number}")
    for remembered in (known.late_failures, known.answered):
        assert (len(remembered), f"c{KEPT_CONTAINERS}" in remembered) == (KEPT_CONTAINERS, True)


def test_a_container_that_is_covered_later_is_covered_for_the_next_daemon_too(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.create("main", 0, cdi=(NIC,))
    (part,) = node.rig.sandboxes.of("sandbox-1")
    node.rig.sandboxes.cover(part, NIC, "side").result(SOON)
    (record,), _ = node.rig.journal.load()
    (item,) = record.attached
    assert [item.admitted.request.scope.covers(it) for it in ("main", "side", "other")] == [True, True, False]
