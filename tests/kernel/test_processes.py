"""The end of a process is noticed, and another process of its number is not taken for it."""

import errno
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.host.watch.processes import ProcessWatcher
from tests.rig.descriptors import open_descriptors

SOON = 20.0


class _Heard:
    """What the watcher told."""

    def __init__(self) -> None:
        self.told: queue.Queue[ProcessIdentity] = queue.Queue()
        self.fail = False
        self.watcher = ProcessWatcher(self._gone)

    def _gone(self, process: ProcessIdentity) -> None:
        self.told.put(process)
        if self.fail:
            raise RuntimeError("a listener's fault")


@pytest.fixture
def heard() -> Iterator[_Heard]:
    made = _Heard()
    yield made
    made.watcher.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until its input ends."""
    yield from _children()


def _children() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made


def _finish(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    child.wait(SOON)


def test_a_process_that_could_not_be_watched_can_be_watched_later(
    heard: _Heard, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has a limit for what an epoll listens to."""

    class Full:
        def register(self, _fd: int, _events: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

    before = open_descriptors()
    with monkeypatch.context() as full:
        full.setattr(heard.watcher, "_epoll", Full())
        with pytest.raises(OSError, match="no space"):
            heard.watcher.watch(child.pid)
    assert open_descriptors() <= before
    process = heard.watcher.watch(child.pid)
    _finish(child)
    assert heard.told.get(timeout=SOON) == process


def test_the_end_of_a_process_is_told_once_however_often_it_is_watched(
    heard: _Heard, child: subprocess.Popen[bytes]
) -> None:
    process = heard.watcher.watch(child.pid)
    heard.watcher.watch_again(process)
    assert heard.watcher.watch(child.pid) == process
    _finish(child)
    assert heard.told.get(timeout=SOON) == process
    assert heard.told.empty()


def test_a_process_that_has_ended_cannot_be_watched(heard: _Heard, child: subprocess.Popen[bytes]) -> None:
    process = heard.watcher.watch(child.pid)
    _finish(child)
    with pytest.raises(ProcessLookupError):
        heard.watcher.watch(child.pid)
    with pytest.raises(ProcessLookupError):
        heard.watcher.watch_again(process)


def test_another_process_of_the_same_number_is_not_taken_for_it(heard: _Heard) -> None:
    own = heard.watcher.watch(os.getpid())
    with pytest.raises(ProcessLookupError):
        heard.watcher.watch_again(replace(own, start=own.start + 1))


def test_a_listener_that_fails_hears_the_next_one(heard: _Heard, child: subprocess.Popen[bytes]) -> None:
    heard.fail = True
    first = heard.watcher.watch(child.pid)
    _finish(child)
    assert heard.told.get(timeout=SOON) == first
    for second in _children():
        process = heard.watcher.watch(second.pid)
        _finish(second)
        assert heard.told.get(timeout=SOON) == process


def test_closing_leaves_no_descriptor_open(child: subprocess.Popen[bytes]) -> None:
    before = open_descriptors()
    heard = _Heard()
    heard.watcher.watch(child.pid)
    heard.watcher.close()
    heard.watcher.watch(child.pid)
    assert open_descriptors() <= before
