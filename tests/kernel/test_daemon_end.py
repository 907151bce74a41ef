"""The end of a daemon while a worker is busy: it comes in time, and takes nothing from under the worker."""

import gc
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from nri_rdma.attach import recovery, timers
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.transaction import Boundary, no_boundary
from nri_rdma.config.settings import Settings
from nri_rdma.daemon import daemon as module
from nri_rdma.daemon.daemon import Daemon
from nri_rdma.daemon.locks import Sole
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.errors import StateError
from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.tasks.listeners import Source
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.fakes.runtime import PLUGIN_SERVICE
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.attach.builders import make_pod
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool

pytestmark = pytest.mark.root
SOON = 20.0


def _daemon(
    tmp_path: Path,
    boundary: Boundary = no_boundary,
    pools: tuple[Pool, ...] = (),
    reread: Callable[[], Settings] | None = None,
) -> Daemon:
    if not (tmp_path / "sys").exists():
        build_tree(load("small"), tmp_path / "sys")
    settings = Settings(
        sysfs_root=tmp_path / "sys",
        dev_root=tmp_path,
        cgroup_root=tmp_path,
        state_dir=tmp_path / "state",
        nri_socket=tmp_path / "nri.sock",
        containerd_socket=tmp_path / "containerd.sock",
        device_plugin_dir=tmp_path / "plugins",
        kubelet_socket=tmp_path / "kubelet.sock",
        cdi_dirs=(tmp_path / "cdi",),
        pools=pools,
    )
    return Daemon(settings, reread=reread or (lambda: settings), boundary=boundary)


def synchronize(daemon: Daemon) -> None:
    """Have the runtime report that it has no pods."""
    call = ttrpc.Request(service=PLUGIN_SERVICE, method="Synchronize")
    daemon.make_plugin(0).answer(Request(1, call, 0))


def left_by_earlier(tmp_path: Path, netns: Path) -> SandboxRecord:
    """Write the record of a pod with this namespace, as an earlier daemon has left it."""
    pod = make_pod(path=str(netns))
    record = SandboxRecord(pod=pod, state=Phase.ATTACHED, namespace=None, plan=Plan(), attached=(), rdma_cm=None)
    Journal(tmp_path / "state/journal").write(record)
    return record


def test_an_idle_daemon_ends_and_lets_the_next_one_start(tmp_path: Path) -> None:
    _daemon(tmp_path).close()
    _daemon(tmp_path).close()


def test_what_changed_before_anybody_listened_is_known_once_it_is_open(tmp_path: Path) -> None:
    """The node was read when the daemon was made, and nothing tells of what came until it listened."""
    daemon = _daemon(tmp_path)
    shutil.rmtree(tmp_path / "sys")
    build_tree(load("eight"), tmp_path / "sys")
    try:
        daemon.open()
        wait_until(lambda: len(daemon._node.current.devices) == len(load("eight").rdma), "the new devices", SOON)
    finally:
        daemon.close()


def test_a_record_that_cannot_be_read_is_logged_with_its_file_and_the_daemon_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = tmp_path / "state/journal/sandbox-1.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    daemon = _daemon(tmp_path)
    try:
        daemon.open()
        assert ask_status(tmp_path / "state/control.sock")
    finally:
        daemon.close()
    (told,) = (vars(it) for it in caplog.records if it.message == "journal record set aside")
    assert str(record) in told["error"]


def test_an_open_daemon_collects_what_it_makes_and_not_what_it_is_made_of(tmp_path: Path) -> None:
    """The command that starts it has switched the collector off."""
    gc.disable()
    frozen_before = gc.get_freeze_count()
    daemon = _daemon(tmp_path)
    try:
        daemon.open()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen_before
    finally:
        gc.enable()
        daemon.close()


def test_what_an_earlier_daemon_left_is_taken_up_when_the_runtime_has_reported_its_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start must not wait for the work on a thousand pods."""
    monkeypatch.setattr(module, "TAKE_UP_S", 60)
    record = left_by_earlier(tmp_path, tmp_path / "gone")
    daemon = _daemon(tmp_path)
    try:
        daemon.open()
        daemon._workers.submit(record.pod.sandbox_id, lambda: None).result(SOON)  # what was queued before is done
        assert [it.pod for it in daemon._attachments.all()] == [record.pod]
        synchronize(daemon)
        wait_until(lambda: daemon._attachments.all() == (), "the end of what no pod has any more", SOON)
    finally:
        daemon.close()


def test_what_cannot_be_taken_up_is_not_looked_for_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TAKE_UP_S", 0.01)
    monkeypatch.setattr(recovery, "TAKE_UP_PAUSE_S", 60)
    before = scheduled()
    (tmp_path / "loop").symlink_to("loop")
    left_by_earlier(tmp_path, tmp_path / "loop")  # nobody can see whether it is there
    daemon = _daemon(tmp_path)
    try:
        daemon.open()
        wait_until(lambda: [round(s, -1) for s in pauses(before)] == [60], "the pause before the next look", SOON)
        assert "earlier attachment not checked, trying again" in caplog.text
    finally:
        daemon.close()
    assert pauses(before) == []


def pauses(before: Collection[int] = ()) -> list[float]:
    """Return the seconds until the scheduled calls of this process, but for those of before."""
    clock = timers._clock()
    return [at - time.monotonic() for at, number in [*clock._due] if number in clock._works.keys() - before]


def scheduled() -> set[int]:
    """Return the numbers of the scheduled calls of this process."""
    return {*timers._clock()._works}


def test_an_open_daemon_leaves_nothing_that_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No timer, no server of a pool; and what an earlier daemon refused is looked at once more before the end."""
    before = scheduled()
    refused = Pod(sandbox_id="refused", uid="uid-1", name="train", namespace="ml", netns_path="")
    (tmp_path / "state").mkdir()
    RefusalNotes(tmp_path / "state/refused").add(refused)
    with FakeDeviceManager(tmp_path / "plugins") as manager:
        daemon = _daemon(tmp_path, pools=(pool(),))
        caplog.set_level(logging.INFO)
        try:
            daemon.open()
            synchronize(daemon)
            wait_until(lambda: RESOURCE in manager.plugins, "the registration", SOON)
            assert ask_status(tmp_path / "state/control.sock")["traces"] is None
            os.kill(os.getpid(), signal.SIGHUP)
            wait_until(lambda: "configuration read again" in caplog.text, "the configuration", SOON)
        finally:
            daemon.close()
        assert [it.name for it in (tmp_path / "plugins").iterdir()] == ["kubelet.sock"]
    assert pauses(before) == []
    told = {it.getMessage(): vars(it) for it in caplog.records}
    absent = told["containerd cannot be asked to remove what it leaves of a refused sandbox: see containerd_socket"]
    assert absent["sandbox"] == "refused"
    assert not {
        "the configuration was not read again",
        "workers are still busy, leaving the rest to the next start",
    } & {*told}


def test_a_bug_in_reading_the_configuration_again_is_logged_with_its_trace_and_the_daemon_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Settings:
        raise RuntimeError("a bug")

    daemon = _daemon(tmp_path, reread=broken)
    try:
        daemon.open()
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(lambda: "the configuration was not read again" in caplog.messages, "the error", SOON)
        assert ask_status(tmp_path / "state/control.sock")["reload_error"] == ""
    finally:
        daemon.close()
    (told,) = (it for it in caplog.records if it.message == "the configuration was not read again")
    assert "RuntimeError: a bug" in str(told.exc_text)


def test_devices_that_several_pools_select_are_told_once_by_a_daemon_that_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pools = tuple(Pool(name=name, modes=(Mode.SHARED,)) for name in ("one", "two"))
    daemon = _daemon(tmp_path, pools=pools)
    try:
        daemon.open()
        told = "devices that several pools select are in none"
        wait_until(lambda: told in caplog.messages, "the error", SOON)
        readings = threading.Semaphore(0)
        daemon._node.on_read.append(readings.release)
        daemon._host.read_later()
        assert readings.acquire(timeout=SOON)
        daemon._readers.submit("after", lambda: None).result(SOON)
    finally:
        daemon.close()
    (error,) = (vars(it) for it in caplog.records if it.message == told)
    assert error["contested"].startswith("one and two both select ")


def test_a_daemon_whose_worker_hangs_ends_in_time_and_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLOSE_WORKERS_S", 0.05)
    daemon, release, running = _daemon(tmp_path), threading.Event(), threading.Event()

    def hang() -> None:
        running.set()
        assert release.wait(SOON)
        daemon._watcher.watch("/run/netns/pod-1")  # a worker that goes on finds no descriptor of somebody else's

    task = daemon._workers.submit("sandbox-1", hang)
    assert running.wait(SOON)
    with caplog.at_level(logging.WARNING):
        daemon.close()
    assert [record.__dict__["tasks"] for record in caplog.records] == [["sandbox-1"]]
    with pytest.raises(StateError, match="uses this state directory"):
        Sole(tmp_path / "state", tmp_path / "another-nri.sock")
    release.set()
    assert isinstance(task.exception(SOON), OSError)


def test_a_worker_that_ends_in_time_still_has_its_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, running, closing = _daemon(tmp_path), threading.Event(), threading.Event()
    close_door = daemon._sockets.close

    def close_and_tell() -> None:
        close_door()
        closing.set()

    def watch_late() -> None:
        running.set()
        assert closing.wait(SOON)
        daemon._watcher.watch(str(tmp_path / "netns"))

    monkeypatch.setattr(daemon._sockets, "close", close_and_tell)
    task = daemon._workers.submit("sandbox-1", watch_late)
    assert running.wait(SOON)
    daemon.close()
    assert task.exception(SOON) is None


def test_a_daemon_that_ended_has_no_descriptor_open(tmp_path: Path) -> None:
    """Its listening sockets are closed with it, not when the collector comes to them."""
    kept: list[Daemon] = []
    descriptors = []
    for _ in range(2):  # the first one loads what stays open
        kept.append(_daemon(tmp_path))
        try:
            kept[-1].open()
            synchronize(kept[-1])
            kept[-1]._sources.specs.await_ready(None, time.monotonic() + SOON)
        finally:
            kept[-1].close()
        descriptors.append(open_descriptors())
    assert descriptors[1] <= descriptors[0]


def test_the_daemon_hears_of_a_listener_that_dies_and_looks_at_everything(tmp_path: Path) -> None:
    """Memory may be wrong from then on, so the node is read again; namespaces and specs are looked at, too."""
    daemon = _daemon(tmp_path)
    daemon._host.listen(daemon._listeners, daemon._node, daemon._news)
    readings = threading.Semaphore(0)
    daemon._node.on_read.append(readings.release)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def die() -> None:
        raise RuntimeError("a bug")

    source = Source(name="dying", fd=read_end, read=die)
    try:
        daemon._listeners.add(source)
        os.write(write_end, b"x")
        assert readings.acquire(timeout=SOON)
    finally:
        daemon._listeners.remove(source)
        daemon.close()
        for fd in (read_end, write_end):
            os.close(fd)


def test_a_daemon_listens_with_two_threads_and_ends_them(tmp_path: Path) -> None:
    """One for all sources, and one for processes, whose limits are lifted before the runtime removes their cgroup."""
    before = set(threading.enumerate())
    daemon = _daemon(tmp_path)
    daemon._host.listen(daemon._listeners, daemon._node, daemon._news)
    named = {thread.name for thread in set(threading.enumerate()) - before}
    others = ("node-reader", "worker", "planner", "image-reader", "clock")
    assert {name for name in named if not name.startswith(others)} == {"listeners", "process-watcher"}
    assert {it.source.name for it in daemon._listeners._listened} == {"namespaces", "uevents", "link events"}
    daemon.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not left & {"listeners", "process-watcher"}


def test_the_last_spans_are_exported_when_the_daemon_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the exporter's thread ends with it."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    before = set(threading.enumerate())
    daemon = _daemon(tmp_path)
    with daemon._spans.span("the last one"):
        pass
    daemon.close()
    assert '"name": "the last one"' in capsys.readouterr().out
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if "export" in name}
