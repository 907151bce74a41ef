"""The guard's word: a container is complete, or it is said what it lacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.holdings import Holdings
from nri_rdma.attach.states import State
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.engine.guard import SEEN_FILE, Guard, Subject, refuse_incomplete
from nri_rdma.engine.view import view_of
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import DeviceNumbers
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Scope
from tests.unit.rigs.inside_daemon import InsideDaemon

PREFIX = "rdma.noderesource.dev"
TWO = {PREFIX: "[{match: {device: mlx5_2}, containers: [a]}]"}
ID = "0123456789abcdef"
PATH = f"/kubepods/pod1/{ID}"


@pytest.fixture
def guard(daemon: InsideDaemon) -> Guard:
    return guard_of(daemon)


def nobody(_sandbox_id: str, _pod: str) -> Collection[str]:
    """The kubelet's word: no container of the pod names a claim."""
    return ()


def guard_of(daemon: InsideDaemon) -> Guard:
    settings = daemon.settings
    known = daemon.engine.sandboxes.get
    gate = daemon.engine.starts.gate
    return Guard(daemon.sandboxes.of, known, nobody, gate, daemon.spans, PREFIX, settings.state_dir)


def given(daemon: InsideDaemon, pod: Pod, container: str = "a", annotations: Mapping[str, str] = TWO) -> ContainerEdits:
    """What CreateContainer of the container was answered."""
    edits = daemon.edits(pod, annotations, container)
    daemon.engine.container_created(pod.sandbox_id, container, PATH)
    return edits


def subject(
    pod: Pod, edits: ContainerEdits, container: str = "a", annotations: Mapping[str, str] = TWO, container_id: str = ID
) -> Subject:
    """The container as its hook sees it when these edits are in its configuration."""
    return Subject(
        sandbox_id=pod.sandbox_id,
        pod=str(pod),
        container=container,
        container_id=container_id,
        annotations=annotations,
        devices={"/dev/null": (1, 3), **nodes(edits)},
        env=frozenset({"PATH", *(name for name, _ in edits.env)}),
    )


def nodes(edits: ContainerEdits) -> dict[str, DeviceNumbers]:
    return {node.path: (node.major, node.minor) for node in edits.char_devices}


def test_a_container_with_all_that_it_was_given_is_complete(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    assert edits.char_devices[0].path == "/dev/infiniband/uverbs2"
    assert guard.verify(subject(pod, edits)) == ""


def test_a_container_that_no_request_covers_is_complete_without_anything(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    assert guard.verify(subject(pod, ContainerEdits(), container="b")) == ""


def test_a_container_that_an_earlier_daemon_answered_for_is_complete_by_what_it_has(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = daemon.edits(pod, TWO, "a")  # nobody here was told that it was made
    assert guard.verify(subject(pod, edits)) == ""


def test_a_container_that_was_made_without_us_is_refused_with_what_it_lacks(
    daemon: InsideDaemon, guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    pod = daemon.start_pod("one", TWO)
    line = guard.verify(subject(pod, ContainerEdits()))
    assert line.startswith("nri-rdma: NOT-SERVED: the container was made without /dev/infiniband/uverbs2, ")
    assert "RDMA_DEVICES_0" in line
    assert "the runtime did not ask nri-rdma about it, default/one, container a. Next: " in line
    assert "\n" not in line
    (told,) = (vars(it) for it in caplog.records if it.message == "the guard keeps a container from starting")
    assert (told["pod"], told["container"], told["error"]) == ("default/one", "a", line)


def test_an_answer_for_an_earlier_container_of_that_name_does_not_count(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    given(daemon, pod)
    line = guard.verify(subject(pod, ContainerEdits(), container_id="another"))
    assert "the runtime did not ask nri-rdma about it" in line


def test_what_somebody_took_away_after_our_answer_is_refused_as_that(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    without = replace(edits, env=tuple(pair for pair in edits.env if pair[0] != "RDMA_DEVICES_0"))
    line = guard.verify(subject(pod, without))
    assert "NOT-SERVED: the container was made without RDMA_DEVICES_0: nri-rdma's answer came too late" in line


def test_each_node_of_a_device_has_to_be_there(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    for missing in edits.char_devices:
        without = replace(edits, char_devices=tuple(it for it in edits.char_devices if it != missing))
        assert f"NOT-SERVED: the container was made without {missing.path}: " in guard.verify(subject(pod, without))
    assert {it.path.rpartition("/")[2] for it in edits.char_devices} >= {"uverbs2", "rdma_cm"}


def test_a_node_with_other_numbers_is_not_the_one(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    (first, *rest) = edits.char_devices
    other = replace(edits, char_devices=(replace(first, minor=first.minor + 1), *rest))
    line = guard.verify(subject(pod, other))
    numbers = f"{first.major}:{first.minor} (it is {first.major}:{first.minor + 1})"
    assert f"NOT-SERVED: the container was made without {first.path} as {numbers}" in line


@pytest.mark.parametrize("text", ["1", "[{match: {device: mlx5_2}}]", "{unknown: key}", "[[["])
def test_a_pod_that_asks_and_has_nothing_attached_is_refused(guard: Guard, text: str) -> None:
    pod = Pod(sandbox_id="s", uid="u", name="early", namespace="prod", netns_path="/x")
    line = guard.verify(subject(pod, ContainerEdits(), annotations={PREFIX: text}))
    assert line.startswith("nri-rdma: NOT-ATTACHED: this pod asks for RDMA devices and none are attached")


def test_a_pod_whose_text_asks_for_nothing_is_complete(guard: Guard) -> None:
    pod = Pod(sandbox_id="s", uid="u", name="early", namespace="prod", netns_path="/x")
    assert guard.verify(subject(pod, ContainerEdits(), annotations={PREFIX: "# nothing yet"})) == ""


def test_a_pod_that_asks_and_has_only_what_a_container_brought_is_refused(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    sandbox.part = "b"
    assert "NOT-ATTACHED" in guard.verify(subject(pod, ContainerEdits()))


RESOURCE = "rdma.noderesource.dev/guard"


def with_resource(one: Subject) -> Subject:
    """The same container with the guard resource, on a runtime that tells its hook of no annotations."""
    return replace(one, annotations={}, resource=RESOURCE)


def test_a_container_with_the_guard_resource_is_complete_only_after_our_answer(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = daemon.edits(pod, TWO, "a")  # an earlier daemon's answer: what it did not know of is not there
    line = guard.verify(with_resource(subject(pod, edits)))
    assert line.startswith(f"nri-rdma: NOT-SERVED: this container has the resource {RESOURCE}, and the runtime did not")
    given(daemon, pod)
    assert guard.verify(with_resource(subject(pod, edits))) == ""
    assert "NOT-SERVED: the container was made without " in guard.verify(with_resource(subject(pod, ContainerEdits())))


def test_a_container_with_the_guard_resource_whose_pod_asks_for_nothing_is_complete_after_our_answer(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = Pod(sandbox_id="s", uid="u", name="other", namespace="default", netns_path="/x")
    one = with_resource(subject(pod, ContainerEdits()))
    assert "NOT-SERVED" in guard.verify(one)
    daemon.engine.container_created(pod.sandbox_id, "a", PATH)
    assert guard.verify(one) == ""
    assert "NOT-SERVED" in guard.verify(replace(one, container_id="made-again"))
    assert "NOT-SERVED" in guard.verify(replace(one, container_id=""))
    daemon.engine.forget(pod.sandbox_id)
    assert "NOT-SERVED" in guard.verify(one)


@pytest.mark.parametrize("state", [State.PLANNED, State.ATTACHING])
def test_an_attach_that_still_runs_refuses_with_the_words_after_which_the_kubelet_comes_back_soon(
    daemon: InsideDaemon, guard: Guard, state: State
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    sandbox.now = sandbox.now._replace(state=state)
    assert guard.verify(subject(pod, edits)).startswith("nri-rdma: NOT-READY: network is not ready: ")


def test_a_sandbox_that_goes_refuses(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    attached = sandbox.now
    sandbox.now = attached._replace(state=State.RETURNING)
    assert "RETURNING: the devices of this sandbox are being returned to the host" in guard.verify(subject(pod, edits))
    sandbox.now = attached
    daemon.stop_pod(pod)
    assert "NOT-ATTACHED" in guard.verify(subject(pod, edits))


def test_numbers_that_are_being_read_anew_are_waited_for(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    looked = Future[None]()
    sandbox.change(looked_again=looked)
    assert "network is not ready: the devices of this pod are being checked again" in guard.verify(subject(pod, edits))
    looked.set_exception(OSError("one is gone"))
    assert "NOT-READY" in guard.verify(subject(pod, edits))
    looked = Future[None]()
    sandbox.change(looked_again=looked)
    done = threading.Timer(0.05, looked.set_result, [None])
    done.start()
    assert guard.verify(subject(pod, edits), time.monotonic() + 20) == ""
    done.join()


def test_an_attach_that_ends_in_time_is_waited_for_and_one_that_does_not_is_refused(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    sandbox.now, sandbox.attach_done = sandbox.now._replace(state=State.ATTACHING), Future()
    start = time.monotonic()
    assert "NOT-READY" in guard.verify(subject(pod, edits), start + 0.1)
    assert 0.1 <= time.monotonic() - start < 5

    def finish() -> None:
        sandbox.now = sandbox.now._replace(state=State.ATTACHED)
        sandbox.attach_done.set_result(None)

    threading.Timer(0.05, finish).start()
    assert guard.verify(subject(pod, edits), time.monotonic() + 20) == ""


def test_questions_and_refusals_are_counted_and_traced(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    assert guard.contacts.last == 0.0
    guard.verify(subject(pod, edits))
    guard.verify(subject(pod, ContainerEdits()))
    assert (guard.contacts.asked, guard.contacts.refused) == (2, 1)
    assert view_of(daemon.engine).refused_by_code == {"NOT-SERVED": 1}
    good, bad = [span for span in daemon.spans.recent() if span.name == "verify"]
    assert (good.error, good.attributes["k8s.pod.name"], good.attributes["container.id"]) == ("", "default/one", ID)
    assert bad.error.startswith("nri-rdma: NOT-SERVED: ")


def test_the_next_daemon_knows_when_the_guard_last_asked(daemon: InsideDaemon, guard: Guard) -> None:
    before = time.time() - 2  # the file's time may be coarser than the clock
    assert ask_status(daemon.settings.control_path)["guard"]["active"] == "unknown"
    pod = daemon.start_pod("one", TWO)
    guard.verify(subject(pod, given(daemon, pod)))
    later = guard_of(daemon).contacts
    assert (later.asked, later.refused) == (0, 0)
    assert later.last > before


def test_a_question_that_cannot_be_remembered_is_answered_all_the_same(
    daemon: InsideDaemon, guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    (daemon.settings.state_dir / SEEN_FILE).symlink_to("nowhere/at/all")
    for _ in range(3):
        assert guard.verify(subject(pod, edits)) == ""
        assert caplog.text.count("the time of the guard's last call cannot be written") == 1


def test_a_container_that_starts_without_a_question_is_told_until_it_starts_guarded(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = daemon.start_pod("one", TWO)

    def told() -> list[str]:
        found: list[str] = ask_status(daemon.settings.control_path)["guard"]["unguarded"]
        return found

    given(daemon, pod)
    daemon.engine.start_container(pod.sandbox_id, "a", PATH)
    assert told() == ["default/one, container a"]
    edits = given(daemon, pod)
    assert guard.verify(subject(pod, edits)) == ""
    daemon.engine.start_container(pod.sandbox_id, "a", PATH)
    assert told() == []


def test_a_word_on_an_earlier_container_of_that_name_guards_no_later_one(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    assert guard.verify(subject(pod, edits)) == ""
    given(daemon, pod)
    daemon.engine.start_container(pod.sandbox_id, "a", PATH)
    assert ask_status(daemon.settings.control_path)["guard"]["unguarded"] == ["default/one, container a"]


LIMITED = {PREFIX: "[{match: {device: mlx5_2}, containers: [a], limits: {hcaObjects: 30}}]"}
LINE = "mlx5_2 hca_handle=max hca_object=30\n"


def test_limits_that_the_oci_runtime_was_not_told_of_are_written_when_the_guard_asks(
    daemon: InsideDaemon, guard: Guard
) -> None:
    daemon.make_cgroups(PATH)
    pod = daemon.start_pod("one", LIMITED)
    edits = given(daemon, pod, annotations=LIMITED)
    assert guard.verify(subject(pod, edits, annotations=LIMITED)) == ""
    assert daemon.cgroup_file(PATH, "rdma.max").read_text() == LINE


def test_limits_that_the_oci_runtime_wrote_are_not_the_guards_matter(daemon: InsideDaemon, guard: Guard) -> None:
    pod = daemon.start_pod("one", {})
    daemon.make_cgroups(PATH, PATH.replace(ID, pod.sandbox_id))
    limited = daemon.start_pod("one", LIMITED)
    edits = given(daemon, limited, annotations=LIMITED)
    assert guard.verify(subject(limited, edits, annotations=LIMITED)) == ""
    assert daemon.cgroup_file(PATH, "rdma.max").read_text() == ""


def test_a_container_that_cannot_be_limited_is_refused_by_the_guard(daemon: InsideDaemon, guard: Guard) -> None:
    daemon.make_cgroups(PATH)
    daemon.cgroup_file(PATH, "rdma.max").unlink()
    pod = daemon.start_pod("one", LIMITED)
    edits = given(daemon, pod, annotations=LIMITED)
    line = guard.verify(subject(pod, edits, annotations=LIMITED))
    assert line.startswith("nri-rdma: LIMITS-NOT-SET: the rdma controller cannot be enabled for it: ")


def test_a_container_with_limits_whose_cgroup_is_not_known_waits_for_the_runtimes_list(
    daemon: InsideDaemon, guard: Guard
) -> None:
    daemon.make_cgroups(PATH)
    pod = daemon.start_pod("one", LIMITED)
    edits = daemon.edits(pod, LIMITED, "a")  # an earlier daemon answered for it
    line = guard.verify(subject(pod, edits, annotations=LIMITED))
    assert line.startswith("nri-rdma: NOT-READY: network is not ready: the daemon does not know yet in which cgroup ")


def test_a_container_with_a_claimed_device_that_is_not_attached_for_it_is_refused(
    daemon: InsideDaemon, guard: Guard
) -> None:
    pod = daemon.start_pod("one", TWO)
    claimed = replace(subject(pod, given(daemon, pod)), cdi_device="rdma.noderesource.dev/claim=u1-nic")
    line = guard.verify(claimed)
    assert line.startswith("nri-rdma: NOT-ATTACHED: this container has the CDI device ")
    assert "rdma.noderesource.dev/claim=u1-nic and nothing is attached for it, default/one, container a" in line


def test_a_container_with_a_claimed_device_is_complete_when_it_is_attached_for_this_container(
    daemon: InsideDaemon,
) -> None:
    device = "rdma.noderesource.dev/claim=u1-nic"
    made, part = claimed(daemon, device)
    refuse_incomplete(replace(made, cdi_device=device), Holdings((part,)), PREFIX, nobody)
    with pytest.raises(NotReadyError, match="the CDI device other/claim=x and nothing is attached"):
        refuse_incomplete(replace(made, cdi_device="other/claim=x"), Holdings((part,)), PREFIX, nobody)
    with pytest.raises(NotReadyError, match="nothing is attached"):  # the request covers container a alone
        refuse_incomplete(replace(made, container="b", cdi_device=device), Holdings((part,)), PREFIX, nobody)


def test_a_claim_of_the_pod_that_no_container_names_has_to_be_attached_for_each(daemon: InsideDaemon) -> None:
    device = "rdma.noderesource.dev/claim=u1-nic"
    made, part = claimed(daemon, device)
    theirs: Collection[str] | None = ()
    asked: list[tuple[str, str]] = []

    def named(sandbox_id: str, pod: str) -> Collection[str] | None:
        asked.append((sandbox_id, pod))
        return theirs

    refuse_incomplete(replace(made, claims=(device,)), Holdings((part,)), PREFIX, named)
    assert asked == []  # what is attached needs no question
    beside = replace(made, container="b", devices={}, env=frozenset(), claims=(device,))
    with pytest.raises(NotReadyError, match=f"{device} is the whole pod's, and nothing is attached") as caught:
        refuse_incomplete(beside, Holdings((part,)), PREFIX, named)
    assert (caught.value.code, asked) == (ErrorCode.NOT_ATTACHED, [("sandbox-one", "default/one")])
    theirs = {device}  # another container names it, and has a guard of its own
    refuse_incomplete(beside, Holdings((part,)), PREFIX, named)
    theirs = None
    with pytest.raises(NotReadyError, match="network is not ready: the kubelet has not reported") as caught:
        refuse_incomplete(beside, Holdings((part,)), PREFIX, named)
    assert caught.value.code is ErrorCode.NOT_READY


def claimed(daemon: InsideDaemon, device: str) -> tuple[Subject, Attachment]:
    """Container a, whose device is attached for a CDI device."""
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    (part,) = daemon.sandboxes.of(pod.sandbox_id)
    record = part.now.record
    assert record is not None
    (item,) = record.attached
    request = replace(item.admitted.request, cdi_device=device)
    of_claim = replace(item, admitted=replace(item.admitted, request=request))
    part.now = part.now._replace(record=replace(record, attached=(of_claim,)))
    return replace(subject(pod, edits)), part


def test_the_nodes_rdma_cm_is_that_of_whichever_attachment_has_one(daemon: InsideDaemon) -> None:
    """The module was loaded between two attaches."""
    pod = daemon.start_pod("one", TWO)
    made = subject(pod, given(daemon, pod))
    (first,) = daemon.sandboxes.of(pod.sandbox_id)
    assert first.now.record is not None
    late = Attachment(pod, first.now.record, state=State.ATTACHED)
    first.change(record=replace(first.now.record, rdma_cm=None))
    refuse_incomplete(made, Holdings((first, late)), PREFIX, nobody)
    nodes = {path: number for path, number in made.devices.items() if "rdma_cm" not in path}
    with pytest.raises(NotReadyError, match="without /dev/infiniband/rdma_cm"):
        refuse_incomplete(replace(made, devices=nodes), Holdings((first, late)), PREFIX, nobody)


@pytest.mark.parametrize("is_planned", [True, False])
def test_an_attach_for_another_container_keeps_nobody_but_that_one(daemon: InsideDaemon, is_planned: bool) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = given(daemon, pod)
    (first,) = daemon.sandboxes.of(pod.sandbox_id)
    assert first.now.record is not None
    (item,) = first.now.record.attached
    request = replace(item.admitted.request, scope=Scope(only=frozenset({"b"})))
    of_b = replace(first.now.record, attached=(replace(item, admitted=replace(item.admitted, request=request)),))
    late = Attachment(pod, part="b", state=State.ATTACHING)
    late.now = late.now._replace(record=of_b if is_planned else None)
    refuse_incomplete(subject(pod, edits), Holdings((first, late)), PREFIX, nobody)
    if is_planned:
        with pytest.raises(NotReadyError, match="the attach of this pod still runs"):
            refuse_incomplete(subject(pod, edits, container="b"), Holdings((first, late)), PREFIX, nobody)
