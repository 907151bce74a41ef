"""The registry in memory is what the directories hold, whatever happens to them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from nri_rdma.cdi.reading import Inspected, inspect
from nri_rdma.cdi.registry import Registry
from nri_rdma.host.cdi import known_files
from nri_rdma.host.cdi import watch as watch_module
from nri_rdma.host.cdi.watch import LONGEST_S, CdiRegistry
from nri_rdma.host.watch import inotify
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until

Watch: TypeAlias = Callable[..., CdiRegistry]


def spec(*devices: str, kind: str = "ve/cl", mark: str = "x") -> str:
    made = [{"name": name, "containerEdits": {"env": [f"FROM={mark}"]}} for name in devices]
    return json.dumps({"cdiVersion": "0.3.0", "kind": kind, "devices": made})


def put(path: Path, text: str) -> None:
    """As drivers write: beside it, then into its place."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    beside.rename(path)


def comes_to(registry: CdiRegistry, *names: str) -> None:
    """Wait until these are the devices."""
    wanted = [f"ve/cl={name}" for name in names]
    wait_until(lambda: list(registry.current.devices) == wanted, f"the devices {wanted}")


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    made = Listeners()
    yield made
    made.close()


@pytest.fixture
def watch(listeners: Listeners) -> Iterator[Watch]:
    """Makes registries that a worker reads, and closes them at the end."""
    made: list[CdiRegistry] = []
    worker = Workers(1)

    def make(*directories: Path, on_change: Callable[[Registry], None] | None = None) -> CdiRegistry:
        number = len(made)

        def refresh() -> None:
            made[number].refresh()

        def read_later() -> None:
            worker.submit("specs", refresh)

        made.append(CdiRegistry(directories, on_change, listeners=listeners, read_later=read_later))
        return made[-1]

    yield make
    worker.close()
    for registry in made:
        registry.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the device ve/cl=a."""
    made = tmp_path / "cdi"
    made.mkdir()
    (made / "a.json").write_text(spec("a"))
    return made


def test_what_is_there_at_the_start_is_read_before_anybody_asks(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    assert list(registry.current.devices) == ["ve/cl=a"]
    assert registry.sequence == 1


def test_a_spec_that_is_renamed_into_place_is_noticed(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    put(folder / "b.json", spec("b"))
    comes_to(registry, "a", "b")


def test_a_spec_that_is_written_in_place_is_noticed_whole(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    with (folder / "b.json").open("w") as opened:
        opened.write(spec("b")[:20])
        opened.flush()
        wait_until(lambda: bool(registry.current.problems), "the half of it is a problem")
        opened.write(spec("b")[20:])
    comes_to(registry, "a", "b")
    assert registry.current.problems == ()


def test_other_text_in_the_same_file_is_noticed(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    put(folder / "a.json", spec("a", mark="y"))
    wait_until(lambda: registry.current.devices["ve/cl=a"].device.edits.env == ("FROM=y",), "the new text")


def test_a_spec_that_is_removed_or_renamed_away_is_noticed(folder: Path, watch: Watch) -> None:
    put(folder / "b.json", spec("b"))
    registry = watch(folder)
    (folder / "b.json").unlink()
    comes_to(registry, "a")
    (folder / "a.json").rename(folder / "a.off")
    comes_to(registry)


def test_a_mounted_volume_that_changes_by_one_link_is_noticed(tmp_path: Path, watch: Watch) -> None:
    """Kubernetes exchanges the link ``..data``; the links to the files stay as they are."""
    for name in ("one", "two"):
        (tmp_path / f"..{name}").mkdir()
        (tmp_path / f"..{name}" / "a.json").write_text(spec(name))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "a.json").symlink_to("..data/a.json")
    registry = watch(tmp_path)
    comes_to(registry, "one")
    (tmp_path / "..tmp").symlink_to("..two")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    comes_to(registry, "two")


def test_a_directory_that_is_made_later_is_noticed(tmp_path: Path, watch: Watch) -> None:
    registry = watch(tmp_path / "cdi")
    assert registry.current == Registry(devices={})
    (tmp_path / "cdi").mkdir()
    put(tmp_path / "cdi/a.json", spec("a"))
    comes_to(registry, "a")


def test_a_directory_that_is_made_later_with_all_above_it_is_noticed(tmp_path: Path, watch: Watch) -> None:
    registry = watch(tmp_path / "far/below/cdi")
    (tmp_path / "far/below/cdi").mkdir(parents=True)
    put(tmp_path / "far/below/cdi/a.json", spec("a"))
    comes_to(registry, "a")


def test_a_directory_that_is_renamed_into_place_with_its_files_is_noticed(
    tmp_path: Path, folder: Path, watch: Watch
) -> None:
    registry = watch(tmp_path / "other")
    folder.rename(tmp_path / "other")
    comes_to(registry, "a")


def test_a_file_in_the_place_of_the_directory_is_none_until_it_is_one(tmp_path: Path, watch: Watch) -> None:
    (tmp_path / "cdi").write_text("")
    registry = watch(tmp_path / "cdi")
    (tmp_path / "cdi").unlink()
    (tmp_path / "cdi").mkdir()
    put(tmp_path / "cdi/a.json", spec("a"))
    comes_to(registry, "a")


def test_a_directory_that_is_removed_and_made_anew_is_noticed_each_time(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    for _ in range(3):
        shutil.rmtree(folder)
        comes_to(registry)
        folder.mkdir()
        put(folder / "a.json", spec("a"))
        comes_to(registry, "a")


def test_a_directory_that_is_exchanged_for_another_is_followed(tmp_path: Path, folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    folder.rename(tmp_path / "old")
    folder.mkdir()
    put(folder / "b.json", spec("b"))
    comes_to(registry, "b")
    put(tmp_path / "old/c.json", spec("c"))
    put(folder / "d.json", spec("d"))
    comes_to(registry, "b", "d")
    assert _watches_of(registry) == 1


def _watches_of(registry: CdiRegistry) -> int:
    """As the kernel counts them."""
    return Path(f"/proc/self/fdinfo/{registry._inotify.fileno()}").read_text().count("inotify wd:")


def test_a_directory_that_comes_while_its_absence_is_noted_is_noticed(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for it and the watch on what is above it, from which nothing is told of it any more."""
    add = inotify.Inotify.add

    def add_late(self: inotify.Inotify, path: str, mask: int) -> int:
        try:
            return add(self, path, mask)
        except FileNotFoundError:
            (tmp_path / "cdi").mkdir()
            raise

    monkeypatch.setattr(inotify.Inotify, "add", add_late)
    registry = watch(tmp_path / "cdi")
    put(tmp_path / "cdi/a.json", spec("a"))
    comes_to(registry, "a")


def test_a_directory_that_cannot_be_watched_is_told_and_its_specs_are_served(
    folder: Path, tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: inotify.Inotify, path: str, _mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with monkeypatch.context() as patch:
        patch.setattr(inotify.Inotify, "add", refuse)
        registry = watch(folder)
        assert registry.unwatched == (folder,)
        assert list(registry.current.devices) == ["ve/cl=a"]
        put(folder / "b.json", spec("b"))
    registry.refresh()
    comes_to(registry, "a", "b")
    assert not registry.unwatched


def test_two_directories_are_watched_and_the_later_counts_more(tmp_path: Path, watch: Watch) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    low.mkdir()
    registry = watch(low, high)
    put(low / "a.json", spec("a", mark="low"))
    comes_to(registry, "a")
    high.mkdir()
    put(high / "a.json", spec("a", mark="high"))
    wait_until(lambda: registry.current.devices["ve/cl=a"].device.edits.env == ("FROM=high",), "the higher one")
    (high / "a.json").unlink()
    wait_until(lambda: registry.current.devices["ve/cl=a"].device.edits.env == ("FROM=low",), "the lower one again")


def test_a_directory_within_a_missing_ones_parent_that_is_watched_too_is_noticed(tmp_path: Path, watch: Watch) -> None:
    registry = watch(tmp_path, tmp_path / "inner")
    put(tmp_path / "a.json", spec("a"))
    comes_to(registry, "a")
    (tmp_path / "inner").mkdir()
    put(tmp_path / "inner/b.json", spec("b"))
    comes_to(registry, "a", "b")


def test_a_broken_file_is_a_problem_and_the_others_are_served(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    put(folder / "b.json", "{")
    wait_until(lambda: bool(registry.current.problems), "the problem")
    assert list(registry.current.devices) == ["ve/cl=a"]
    put(folder / "b.json", spec("b"))
    comes_to(registry, "a", "b")
    assert registry.current.problems == ()


def test_two_hundred_files_in_a_burst_are_a_few_readings(tmp_path: Path, watch: Watch) -> None:
    told: list[int] = []
    registry = watch(tmp_path, on_change=lambda now: told.append(len(now.devices)))
    begin = time.monotonic()
    for number in range(200):
        put(tmp_path / f"{number}.json", spec(f"d{number:03}"))
    wrote_s = time.monotonic() - begin
    comes_to(registry, *(f"d{number:03}" for number in range(200)))
    wait_until(lambda: bool(told) and told[-1] == 200, "the listener has heard of all")
    assert registry.sequence - 1 == len(told)
    assert len(told) <= 4 + wrote_s / LONGEST_S * 2  # of 400 renames and writes


def test_a_directory_that_never_rests_is_read_all_the_same(folder: Path, watch: Watch) -> None:
    registry = watch(folder)
    put(folder / "b.json", spec("b"))
    deadline = time.monotonic() + 10
    while list(registry.current.devices) != ["ve/cl=a", "ve/cl=b"]:
        assert time.monotonic() < deadline
        (folder / "noise.tmp").touch()


def test_what_happens_beside_a_missing_directory_costs_no_reading(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "QUIET_S", 0.0)  # else it would all be one burst
    registry = watch(tmp_path / "cdi")
    for number in range(50):
        (tmp_path / f"{number}.pid").touch()
    (tmp_path / "cdi").mkdir()
    wait_until(lambda: registry.sequence > 1, "the directory")
    put(tmp_path / "cdi/a.json", spec("a"))
    comes_to(registry, "a")
    assert registry.sequence <= 5


def test_files_that_have_not_changed_are_not_parsed_again(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        put(tmp_path / f"{number}.json", spec(f"d{number}"))
    registry = watch(tmp_path)
    before = registry.current.devices
    put(tmp_path / "3.json", spec("d3", mark="y"))
    wait_until(lambda: registry.current.devices["ve/cl=d3"].device.edits.env == ("FROM=y",), "the new text")
    same = [name for name, device in registry.current.devices.items() if device.device is before[name].device]
    assert same == ["ve/cl=d0", "ve/cl=d1", "ve/cl=d2", "ve/cl=d4"]


def test_what_was_lost_by_the_kernel_is_read_again(folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = watch(folder)
    lost = inotify.FolderEvent(watch=-1, mask=inotify.Q_OVERFLOW, name="")
    monkeypatch.setattr(inotify.Inotify, "read", lambda self: [lost] if _taken(self) else [])
    put(folder / "b.json", spec("b"))  # its own events are taken away
    comes_to(registry, "a", "b")


_real_read = inotify.Inotify.read


def _taken(watches: inotify.Inotify) -> bool:
    return bool(list(_real_read(watches)))


def test_a_refresh_reads_now_and_tells(folder: Path, watch: Watch) -> None:
    told: list[Registry] = []
    registry = watch(folder, on_change=told.append)
    before = registry.current
    assert registry.refresh() is registry.current
    assert registry.current is not before
    assert told[0] is registry.current or len(told) > 1
    assert registry.sequence >= 2


def test_a_listener_that_fails_does_not_end_the_watching(folder: Path, watch: Watch) -> None:
    def fail(_registry: Registry) -> None:
        raise ValueError("listener")

    registry = watch(folder, on_change=fail)
    put(folder / "b.json", spec("b"))
    comes_to(registry, "a", "b")
    put(folder / "c.json", spec("c"))
    comes_to(registry, "a", "b", "c")
    assert list(registry.refresh().devices) == ["ve/cl=a", "ve/cl=b", "ve/cl=c"]


def test_a_listener_may_ask_for_the_registry_that_it_is_told_of(folder: Path, watch: Watch) -> None:
    seen: list[bool] = []
    registry: CdiRegistry | None = None

    def listen(now: Registry) -> None:
        assert registry is not None
        seen.append(registry.current is now)

    registry = watch(folder, on_change=listen)
    put(folder / "b.json", spec("b"))
    wait_until(lambda: bool(seen), "the listener")
    assert seen[0]


def test_closing_ends_the_watching_and_what_was_read_stays(folder: Path, listeners: Listeners) -> None:
    noticed: list[float] = []
    registry = CdiRegistry([folder], listeners=listeners, read_later=lambda: noticed.append(time.monotonic()))
    put(folder / "c.json", spec("c"))
    wait_until(lambda: bool(noticed), "the change to be noticed")
    (folder / "c.json").unlink()
    fd = registry._inotify.fileno()
    registry.close()
    registry.close()
    assert "inotify" not in _what_is(fd)
    assert registry._source not in [it.source for it in listeners._listened]
    assert list(registry.current.devices) == ["ve/cl=a"]
    (folder / "b.json").write_text(spec("b"))
    assert list(registry.refresh().devices) == ["ve/cl=a", "ve/cl=b"]


def _what_is(fd: int) -> str:
    link = Path(f"/proc/self/fd/{fd}")
    return str(link.readlink()) if link.is_symlink() else ""


def test_the_thread_that_listens_neither_parses_nor_waits_for_a_parse(
    folder: Path, listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, go = threading.Event(), threading.Event()
    parsed_by: list[str] = []

    def hold(data: bytes, file: str) -> Inspected:
        parsed_by.append(threading.current_thread().name)
        parsing.set()
        assert go.wait(10)
        return inspect(data, file)

    worker = Workers(1, name="reader")
    registry: CdiRegistry | None = None
    noticed: list[float] = []

    def refresh() -> None:
        assert registry is not None
        registry.refresh()

    def read_later() -> None:
        noticed.append(time.monotonic())
        worker.submit("specs", refresh)

    registry = CdiRegistry([folder], listeners=listeners, read_later=read_later)
    try:
        monkeypatch.setattr(known_files, "inspect", hold)
        put(folder / "b.json", spec("b"))
        assert parsing.wait(10)
        put(folder / "c.json", spec("c"))
        wait_until(lambda: len(noticed) > 1, "the next change to be noticed during the parse")
        go.set()
        comes_to(registry, "a", "b", "c")
    finally:
        go.set()
        worker.close()
        registry.close()
    assert set(parsed_by) == {"reader-0"}


def test_readers_see_one_whole_registry_or_another(folder: Path, watch: Watch) -> None:
    """Each file is written with two devices of one mark; a reader never sees one of each."""
    put(folder / "a.json", spec("a", "b", mark="0"))
    registry = watch(folder)
    torn: list[set[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            marks = {device.device.edits.env[0] for device in registry.current.devices.values()}
            if len(marks) != 1:
                torn.append(marks)

    reader = threading.Thread(target=look)
    reader.start()
    for mark in range(1, 30):
        put(folder / "a.json", spec("a", "b", mark=str(mark)))
        registry.refresh()
    over.set()
    reader.join()
    assert torn == []
