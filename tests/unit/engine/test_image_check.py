"""Images are checked before containers run, and a misfit is in status, log and span; nobody waits for long."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from threading import Event

import pytest

from nri_rdma.commands.status.cli import attention
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.node_document import SERVICE
from nri_rdma.engine.gate import Created
from nri_rdma.engine.image_check import ImageCheck
from nri_rdma.model.pod import Pod
from nri_rdma.model.userspace import Made, Provider, Userspace
from nri_rdma.pb import control_pb2
from nri_rdma.tasks.workers import Workers
from nri_rdma.ttrpc import Client
from tests.rig.deadline import wait_until
from tests.unit.rigs.inside_daemon import InsideDaemon

PREFIX = "rdma.noderesource.dev"
TWO = {PREFIX: "[{match: {device: mlx5_2}, containers: [a, b]}]"}
OFF = {PREFIX: "[{match: {device: mlx5_2}, userspace: off}]"}
NO_VERBS = {PREFIX: "[{match: {device: mlx5_2}, devices: [rdma_cm]}]"}
MADE = Made(pid=7, bundle="/run/bundle")
FITS = Userspace(path="/lib/libibverbs.so.1", providers=(Provider(name="mlx5", path="/p", is_listed=True, abi=(1, 1)),))


class Shelf:
    """Images that a test has put there."""

    machine = "x86_64"

    def __init__(self) -> None:
        self.image = Userspace()
        self.kernel = 1
        self.asked: list[tuple[Made, frozenset[str]]] = []
        self.gate = Event()
        self.gate.set()

    def read(self, made: Made, providers: Collection[str]) -> Userspace:
        self.asked.append((made, frozenset(providers)))
        self.gate.wait()
        return self.image

    def abi(self, uverbs: str) -> int | None:
        return self.kernel if uverbs == "uverbs2" else None


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def check(daemon: InsideDaemon, shelf: Shelf) -> Iterator[ImageCheck]:
    readers = Workers(1, name="image-reader")
    found = ImageCheck(shelf, daemon.engine.sandboxes, daemon.spans, readers)
    daemon.engine.starts.images = daemon.engine.starts.gate.images = found
    yield found
    shelf.gate.set()
    readers.close()


def checked(daemon: InsideDaemon, check: ImageCheck, pod: Pod, container: str = "a", container_id: str = "1") -> bool:
    """Whether there was something to check; it is done then."""
    done = check.begin(daemon.sandboxes.of(pod.sandbox_id), container, container_id, lambda: MADE)
    if done is not None:
        done.result(30)
    return done is not None


def test_an_image_without_libraries_is_in_status_log_and_span(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck, caplog: pytest.LogCaptureFixture
) -> None:
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    assert shelf.asked == [(MADE, frozenset({"mlx5"}))]
    (problem,) = check.problems(pod.sandbox_id, "a", "1")
    text = str(problem)
    assert text.startswith("nri-rdma: USERSPACE-MISSING: the image has no libibverbs.so.1: ")
    assert ", default/one, container a. Next: " in text
    document = ask_status(daemon.settings.control_path)
    assert document["images"] == [
        {"pod": "default/one", "container": "a", "code": "USERSPACE-MISSING", "error": text},
    ]
    assert list(attention(document)) == list(attention({**document, "images": []})), "a warning fails no probe"
    (span,) = (it for it in daemon.spans.recent() if it.name == "userspace")
    assert span.attributes["rdma.userspace.problem"] == text
    assert (span.attributes["k8s.pod.name"], span.attributes["k8s.container.name"]) == ("default/one", "a")
    (said,) = (vars(it) for it in caplog.records if "cannot use its RDMA devices" in it.message)
    assert (said["pod"], said["container"], said["problems"]) == ("default/one", "a", [text])


def test_a_container_that_is_made_again_is_checked_again_and_said_once(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck, caplog: pytest.LogCaptureFixture
) -> None:
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    assert not checked(daemon, check, pod), "the guard asked, and StartContainer comes after it"
    assert checked(daemon, check, pod, container_id="2")
    assert len([it for it in caplog.records if "cannot use its RDMA devices" in it.message]) == 1
    shelf.image = FITS
    assert checked(daemon, check, pod, container_id="3")
    assert ask_status(daemon.settings.control_path)["images"] == []


def test_an_image_that_fits_is_no_news(daemon: InsideDaemon, shelf: Shelf, check: ImageCheck) -> None:
    shelf.image = FITS
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    assert check.problems(pod.sandbox_id, "a", "1") == ()
    assert ask_status(daemon.settings.control_path)["images"] == []


def test_the_kernels_version_of_the_devices_own_node_counts(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck
) -> None:
    shelf.image, shelf.kernel = FITS, 6
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    (problem,) = check.problems(pod.sandbox_id, "a", "1")
    assert "driver of mlx5_2, mlx5_core, has version 6 of its interface" in problem.what


@pytest.mark.parametrize(("annotations", "container"), [(TWO, "other"), (OFF, "a"), (NO_VERBS, "a"), ({}, "a")])
def test_containers_whose_programs_do_not_use_verbs_cost_nothing(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck, annotations: dict[str, str], container: str
) -> None:
    pod = daemon.start_pod("one", annotations)
    assert not checked(daemon, check, pod, container)
    assert shelf.asked == []


def test_an_image_that_cannot_be_read_is_shown_as_such(daemon: InsideDaemon, shelf: Shelf, check: ImageCheck) -> None:
    shelf.image = Userspace(unseen="it is on a mount")
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    assert ask_status(daemon.settings.control_path)["images"] == [
        {"pod": "default/one", "container": "a", "code": "", "error": "it is on a mount"}
    ]


def test_the_end_of_a_pod_takes_its_warning_along(daemon: InsideDaemon, check: ImageCheck) -> None:
    pod = daemon.start_pod("one", TWO)
    assert checked(daemon, check, pod)
    daemon.stop_pod(pod)
    assert ask_status(daemon.settings.control_path)["images"] == []


def test_a_check_that_ends_after_its_pod_is_forgotten(daemon: InsideDaemon, shelf: Shelf, check: ImageCheck) -> None:
    pod = daemon.start_pod("one", TWO)
    shelf.gate.clear()
    done = check.begin(daemon.sandboxes.of(pod.sandbox_id), "a", "1", lambda: MADE)
    daemon.stop_pod(pod)
    shelf.gate.set()
    assert done is not None
    done.result(30)
    assert ask_status(daemon.settings.control_path)["images"] == []


def test_a_bug_in_a_check_is_logged(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.read = partial(_fail)  # type: ignore[method-assign]  # a reader with a bug
    pod = daemon.start_pod("one", TWO)
    with pytest.raises(ZeroDivisionError):
        checked(daemon, check, pod)
    wait_until(lambda: any("image was not checked" in it.message for it in caplog.records), "the line in the log")


def test_a_check_that_runs_is_not_begun_again(daemon: InsideDaemon, shelf: Shelf, check: ImageCheck) -> None:
    pod = daemon.start_pod("one", TWO)
    parts = daemon.sandboxes.of(pod.sandbox_id)
    shelf.gate.clear()
    first = check.begin(parts, "a", "1", lambda: MADE)
    assert first is not None
    assert check.begin(parts, "a", "1", lambda: MADE) is first
    second = check.begin(parts, "a", "2", lambda: MADE)
    assert second is not None
    assert second is not first, "the container was made again"
    shelf.gate.set()
    second.result(30)
    assert len(shelf.asked) == 2
    wait_until(lambda: not check.running, "both forgotten")


def test_a_container_to_be_proven_is_refused_where_its_check_failed(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck
) -> None:
    pod = daemon.start_pod("one", TWO)
    parts = daemon.sandboxes.of(pod.sandbox_id)
    created = Created(where="pod one", name="a", container_id="1", cgroups_path="/c", pid=7, bundle="/run/bundle")
    shelf.read, read = partial(_fail), shelf.read  # type: ignore[method-assign]  # a reader with a bug
    refusal = check.refusal(parts, created, 5)
    assert refusal is not None
    assert str(refusal) == (
        "nri-rdma: INTERNAL: the check of its image failed inside the daemon, pod one. Next: report this with the"
        " daemon's log."
    )
    shelf.read, shelf.image = read, FITS  # type: ignore[method-assign]
    assert check.refusal(parts, created, 5) is None
    check.readers.close()
    late = check.refusal(parts, replace(created, container_id="2"), 5)
    assert late is not None
    assert late.code == "PROOF-LATE", "the daemon ends"


def test_the_start_of_a_container_begins_the_check_and_does_not_wait(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck
) -> None:
    pod = daemon.start_pod("one", TWO)
    shelf.gate.clear()
    with daemon.spans.span("StartContainer") as call:
        daemon.engine.start_container(pod.sandbox_id, "a", "", None, "1", lambda: Made(pid=9))
    daemon.engine.start_container(pod.sandbox_id, "b", "")  # a door that does not say where the image is
    shelf.gate.set()
    wait_until(lambda: check.problems(pod.sandbox_id, "a", "1") or None, "the check")
    assert [made for made, _ in shelf.asked] == [Made(pid=9)]
    (span,) = (it for it in daemon.spans.recent() if it.name == "userspace")
    assert (span.trace_id, span.parent_id) == (call.trace_id, call.span_id)


def test_the_guard_has_the_image_checked_before_it_answers(
    daemon: InsideDaemon, shelf: Shelf, check: ImageCheck
) -> None:
    pod = daemon.start_pod("one", TWO)
    edits = daemon.edits(pod, TWO, "a")
    request = control_pb2.VerifyRequest(
        sandbox_id=pod.sandbox_id,
        pod=str(pod),
        container="a",
        container_id="1",
        annotations=TWO,
        devices=[control_pb2.DeviceNode(path=it.path, major=it.major, minor=it.minor) for it in edits.char_devices],
        env=[name for name, _ in edits.env],
        pid=7,
        bundle="/run/bundle",
    )
    assert is_complete(daemon, request)
    assert [it.code for it in check.problems(pod.sandbox_id, "a", "1")] == ["USERSPACE-MISSING"]
    shelf.gate.clear()
    request.container_id = "2"
    started = time.monotonic()
    assert is_complete(daemon, request), "a slow image is no reason to refuse"
    assert time.monotonic() - started < 5
    request.container_id, request.pid = "3", 0
    asked = len(shelf.asked)
    assert is_complete(daemon, request), "a hook of an older release"
    assert len(shelf.asked) == asked


def is_complete(daemon: InsideDaemon, request: control_pb2.VerifyRequest) -> bool:
    """The answer to the guard's hook."""
    with Client(daemon.settings.control_path) as client:
        answer = client.call(SERVICE, "Verify", request.SerializeToString(), timeout_s=10)
    return control_pb2.VerifyReply.FromString(answer).complete


def _fail(*_arguments: object) -> Userspace:
    raise ZeroDivisionError
