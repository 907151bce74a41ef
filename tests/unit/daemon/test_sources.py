"""What others give to containers is read by a worker: specs when they change, the kubelet when it is there."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: what a class is made with

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon import sources
from nri_rdma.daemon.sources import Sources
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.errors import ErrorCode, KubeletError, NotReadyError
from nri_rdma.host.cdi import watch
from nri_rdma.host.kubelet.door import KubeletDoor
from nri_rdma.host.watch import inotify
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors
from tests.rig.kubelet import FakeKubelet
from tests.unit.model.hardware import eight
from tests.unit.rigs.attachments import Clock

SOON = 20.0


class Site:
    """Others on a node, with a folder of specs that a test may change."""

    def __init__(self, folder: Path) -> None:
        gc.collect()  # what earlier tests left: a watch of ours could get the number of theirs
        self._before = open_descriptors()
        self.specs = folder / "cdi"
        self.specs.mkdir()
        self.workers = Workers(1)
        self.listeners = Listeners()
        settings = Settings(cdi_dirs=(self.specs,), kubelet_socket=folder / "kubelet.sock", kubelet_wait=SOON)
        self.node = NodeCache(eight)
        self.others = Sources(settings, self.node, self.workers, self.listeners)

    def write(self, name: str) -> None:
        """Write a spec with one device, as a driver does it: none is half there at any time."""
        device = {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs0"}]}}
        spec = {"cdiVersion": "0.6.0", "kind": "a.example.com/nic", "devices": [device]}
        (self.specs / f"{name}.tmp").write_text(json.dumps(spec))
        (self.specs / f"{name}.tmp").rename(self.specs / f"{name}.json")

    def devices(self) -> set[str]:
        return set(self.others.specs.now.registry.devices)

    def watches(self) -> int:
        """How many of the kernel's watches are open since the node is there."""
        return [target for _, target in open_descriptors() - self._before].count("anon_inode:inotify")

    def close(self) -> None:
        self.workers.close()
        self.others.close()
        self.listeners.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def _settle(site: Site) -> None:
    """Wait until the worker has done what it was given. Only tasks with one key keep their order."""
    site.workers.submit("specs", lambda: None).result(SOON)


def test_specs_are_read_when_it_is_opened_and_not_before(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.write("one")
    assert site.devices() == set()
    with pytest.raises(NotReadyError):
        site.others.specs.await_ready(None, deadline=0)
    site.others.open_later()
    site.others.open_later()  # the runtime may connect more than once
    _settle(site)
    site.others.specs.await_ready(None, deadline=0)
    assert site.devices() == {"a.example.com/nic=one"}
    assert [it.message for it in caplog.records if it.levelno >= logging.WARNING] == []


def test_a_spec_that_is_written_later_is_read_when_somebody_asks(site: Site) -> None:
    site.others.open_later()
    _settle(site)
    site.write("two")
    site.others.reread().result(SOON)
    assert site.devices() == {"a.example.com/nic=two"}


def test_who_asks_while_a_reading_is_queued_shares_it(site: Site) -> None:
    held, begun = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        assert held.wait(SOON)

    busy = site.workers.submit("busy", occupy)
    assert begun.wait(SOON)
    first = site.others.reread()
    assert site.others.reread() is first
    held.set()
    first.result(SOON)
    busy.result(SOON)
    assert site.others.reread() is not first


def test_a_reading_that_somebody_asks_for_goes_before_what_was_queued_earlier(site: Site) -> None:
    held, begun, order = threading.Event(), threading.Event(), list[str]()

    def occupy() -> None:
        begun.set()
        assert held.wait(SOON)

    site.workers.submit("busy", occupy)
    assert begun.wait(SOON)
    attach = site.workers.submit("attach", lambda: order.append("attach"))
    reading = site.others.reread()
    reading.add_done_callback(lambda _done: order.append("specs"))
    held.set()
    for it in (attach, reading):
        it.result(SOON)
    assert order == ["specs", "attach"]


def test_specs_are_compared_with_the_node_as_it_was_read_last(site: Site) -> None:
    before = site.others.specs.now.node
    site.node.refresh()
    assert site.others.specs.now.node is site.node.current is not before


def test_after_the_end_nothing_is_read_any_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "no watch is left")

    monkeypatch.setattr(watch, "CdiRegistry", refuse)
    monkeypatch.setattr(sources, "UNWATCHED_S", 60)
    clock = Clock()
    monkeypatch.setattr(sources, "start_timer", clock)
    site.others.open_later()
    _settle(site)
    assert [pause_s for pause_s, _ in clock.pending] == [60]
    site.others.close()
    assert clock.pending == []
    site.others.reread().result(SOON)  # as a worker that had begun
    assert clock.pending == []


def test_a_reading_watches_nothing_twice(site: Site) -> None:
    site.others.open_later()
    _settle(site)
    for _ in range(3):
        site.others.reread().result(SOON)
    assert site.watches() == 1


def test_a_bug_of_the_reader_is_logged(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(watch, "CdiRegistry", broken)
    site.others.open_later()
    _settle(site)
    assert "the CDI specs were not read" in caplog.messages


def test_where_no_watch_is_left_a_spec_is_read_when_somebody_asks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "no watch is left")

    monkeypatch.setattr(watch, "CdiRegistry", refuse)
    site.others.open_later()
    _settle(site)
    site.write("late")
    site.others.reread().result(SOON)
    assert site.devices() == {"a.example.com/nic=late"}


def test_changes_that_were_lost_are_read_once_it_is_open(site: Site) -> None:
    site.write("early")
    site.others.changes_were_lost()
    _settle(site)
    assert site.devices() == set()
    site.others.open_later()
    _settle(site)
    site.listeners.close()  # nobody else tells of changes
    site.write("late")
    site.others.changes_were_lost()
    wait_until(lambda: site.devices() == {"a.example.com/nic=early", "a.example.com/nic=late"}, "both specs", SOON)


def test_directories_that_nobody_watches_are_read_now_and_then_until_they_are_watched(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel has no inotify instance left."""
    left = iter([True, True])
    made = watch.CdiRegistry

    def limited(*arguments: Any, **more: Any) -> watch.CdiRegistry:
        if next(left, False):
            raise OSError(errno.EMFILE, "no more instances")
        return made(*arguments, **more)

    monkeypatch.setattr(watch, "CdiRegistry", limited)
    monkeypatch.setattr(sources, "UNWATCHED_S", 0.02)
    site.write("early")
    site.others.open_later()
    _settle(site)
    assert site.devices() == {"a.example.com/nic=early"}
    site.write("late")
    wait_until(lambda: site.devices() == {"a.example.com/nic=early", "a.example.com/nic=late"}, "both specs", SOON)
    wait_until(lambda: next(left, None) is None and site.watches() == 1, "the watch", SOON)
    told = [it for it in caplog.messages if it == "CDI specs are read now and then: the kernel does not watch them"]
    assert len(told) == 2


def test_a_directory_that_cannot_be_watched_is_read_now_and_then(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user has as many watches as may be (fs.inotify.max_user_watches)."""

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no watch is left")

    monkeypatch.setattr(inotify.Inotify, "add", full)
    monkeypatch.setattr(sources, "UNWATCHED_S", 0.02)
    site.others.open_later()
    _settle(site)
    site.write("late")
    wait_until(lambda: site.devices() == {"a.example.com/nic=late"}, "the spec", SOON)


def test_a_reading_without_a_descriptor_leaves_what_was_read_and_is_done_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("early")
    site.others.open_later()
    _settle(site)
    site.listeners.close()  # nobody tells of changes
    monkeypatch.setattr(sources, "UNWATCHED_S", 0.02)
    left = iter([True, True])

    def limited(path: Path) -> Any:
        if next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return os_scandir(path)

    os_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", limited)
    site.write("late")
    with pytest.raises(OSError, match="Too many open files"):
        site.others.reread().result(SOON)
    assert site.devices() == {"a.example.com/nic=early"}
    wait_until(lambda: site.devices() == {"a.example.com/nic=early", "a.example.com/nic=late"}, "both specs", SOON)
    assert "the CDI specs were not read" in caplog.messages


@pytest.mark.parametrize("step", ["the specs", "the kubelet"])
def test_an_opening_that_failed_is_done_again(site: Site, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    left, begin, scandir = iter([True, True]), KubeletDoor.begin, os.scandir

    def fail() -> bool:
        if next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return False

    if step == "the kubelet":
        monkeypatch.setattr(KubeletDoor, "begin", lambda door: fail() or begin(door))
    else:
        monkeypatch.setattr(os, "scandir", lambda path: fail() or scandir(path))
    monkeypatch.setattr(sources, "UNWATCHED_S", 0.02)
    site.write("one")
    site.others.open_later()
    wait_until(lambda: site.others.specs.is_ready, "the opening", SOON)
    assert next(left, False) is False
    assert (site.devices(), site.watches()) == ({"a.example.com/nic=one"}, 1)


def test_a_kubelet_that_is_not_connected_yet_is_told_with_its_socket(site: Site, tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match=str(tmp_path / "kubelet.sock")) as caught:
        site.others.of_pod("ml", "train")
    assert (caught.value.code, caught.value.where) == (ErrorCode.KUBELET_UNREACHABLE, "pod ml/train")
    assert (site.others.is_there, site.others.tells) == (False, False)
    (tmp_path / "kubelet.sock").touch()
    assert site.others.is_there


def test_a_kubelet_that_is_there_is_connected_before_anybody_asks_and_left_at_the_end(
    site: Site, tmp_path: Path
) -> None:
    with FakeKubelet() as kubelet:
        (tmp_path / "kubelet.sock").symlink_to(kubelet.socket)
        site.others.open_later()
        wait_until(lambda: site.others.tells, "the kubelet's answer", SOON)
        assert site.others.of_pod("ml", "train") is None
        site.others.close()
        with pytest.raises(KubeletError):
            site.others.of_pod("ml", "train")


def test_the_checkpoint_is_read_only_where_claims_are_served(site: Site, tmp_path: Path) -> None:
    (tmp_path / "dra_manager_state").write_bytes(b"claims")
    plain = Settings(kubelet_plugins_dir=tmp_path / "plugins")
    serving = replace(plain, pools=(Pool(name="nics", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS),))
    for settings, read in ((plain, b""), (serving, b"claims")):
        others = Sources(settings, site.node, site.workers, site.listeners)
        assert others.checkpoint() == read
        others.close()
