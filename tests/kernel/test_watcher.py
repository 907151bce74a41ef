"""A namespace's file that goes away is noticed, whatever else happens in its folder."""

import os
import queue
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.watch.namespaces import NamespaceWatcher
from nri_rdma.tasks.listeners import TURN_S, Listeners, Source
from tests.rig.deadline import wait_until

SOON = 20.0


class _Heard:
    """What the watcher told."""

    def __init__(self) -> None:
        self.told: queue.Queue[str] = queue.Queue()
        self.fail = False
        self.listeners = Listeners(lambda _name: self.told.put("failed"), rest_s=0.01)
        self.watcher = NamespaceWatcher(self.listeners, self._gone, lambda: self.told.put("look at all"))

    def _gone(self, path: str) -> None:
        self.told.put(path)
        if self.fail:
            raise RuntimeError("a listener's fault")

    def next(self) -> str:
        return self.told.get(timeout=SOON)


@pytest.fixture
def heard() -> Iterator[_Heard]:
    made = _Heard()
    yield made
    made.watcher.close()
    made.listeners.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "netns"
    made.mkdir()
    for name in ("a", "b", "c"):
        (made / name).touch()
    return made


def test_a_deleted_file_is_told_by_its_path(heard: _Heard, folder: Path) -> None:
    heard.watcher.watch(str(folder / "a"))
    heard.watcher.watch(str(folder / "b"))
    (folder / "b").unlink()
    (folder / "a").rename(folder.parent / "elsewhere")
    assert [heard.next(), heard.next()] == [str(folder / "b"), str(folder / "a")]
    assert heard.told.empty()


def test_a_listener_that_fails_hears_the_next_one(heard: _Heard, folder: Path) -> None:
    heard.fail = True
    heard.watcher.watch(str(folder / "a"))
    for name in ("a", "b"):
        (folder / name).unlink()
    assert [heard.next() for _ in range(4)] == [str(folder / "a"), "failed", str(folder / "b"), "failed"]


def test_a_folder_that_goes_away_makes_everybody_look_and_can_be_watched_again(heard: _Heard, folder: Path) -> None:
    heard.watcher.watch(str(folder / "a"))
    shutil.rmtree(folder)
    told = [heard.next() for _ in range(4)]
    assert told[-1] == "look at all"
    folder.mkdir()
    (folder / "d").touch()
    heard.watcher.watch(str(folder / "d"))
    (folder / "d").unlink()
    assert heard.next() == str(folder / "d")


def test_a_folder_that_is_not_there_is_an_error(heard: _Heard, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="watch"):
        heard.watcher.watch(str(tmp_path / "no/a"))


def test_a_closed_watcher_watches_nothing(folder: Path) -> None:
    listeners = Listeners()
    watcher = NamespaceWatcher(listeners, lambda _path: None, lambda: None)
    watcher.close()
    listeners.close()
    with pytest.raises(OSError, match="closed"):
        watcher.watch(str(folder / "a"))


def test_many_namespaces_that_go_at_once_keep_no_other_source_waiting(heard: _Heard, folder: Path) -> None:
    """What is left of a turn has the next one."""
    order: list[str] = []
    read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def note() -> None:
        os.read(read_end, 1)
        order.append("other")

    def gone(path: str) -> None:
        if not order:
            os.write(write_end, b"x")
        order.append(path)
        time.sleep(TURN_S / 2)

    source = Source(name="other", fd=read_end, read=note)
    watcher = NamespaceWatcher(heard.listeners, gone, lambda: None)
    names = [str(folder / f"pod-{number}") for number in range(12)]
    for name in names:
        Path(name).touch()
    heard.listeners.add(source)
    watcher.watch(names[0])
    for name in names:
        Path(name).unlink()
    wait_until(lambda: len(order) == len(names) + 1, "all to be told", seconds=SOON)
    heard.listeners.remove(source)
    watcher.close()
    for fd in (read_end, write_end):
        os.close(fd)
    assert [it for it in order if it != "other"] == names
    assert order.index("other") < 6
