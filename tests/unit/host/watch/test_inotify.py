"""This kernel's reports about a folder, as they are read."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.watch.inotify import (
    ATTRIB,
    CLOSE_WRITE,
    CREATE,
    DELETE,
    DELETE_SELF,
    IGNORED,
    MOVED_FROM,
    MOVED_TO,
    ONLYDIR,
    FolderEvent,
    Inotify,
)

ISDIR = 0x40000000  # include/uapi/linux/inotify.h


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    made = Inotify()
    yield made
    made.close()


def has_events(inotify: Inotify) -> bool:
    return bool(select.select([inotify], [], [], 0)[0])


def heard(inotify: Inotify) -> list[tuple[int, str]]:
    return [(event.mask, event.name) for event in inotify.read()]


def test_what_happens_in_a_folder_is_told_in_order(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.add(str(tmp_path), CREATE | CLOSE_WRITE | MOVED_FROM | MOVED_TO | DELETE | ATTRIB)
    (tmp_path / "a").write_text("text")
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "a").rename(tmp_path / "longer name")
    (tmp_path / "longer name").unlink()
    (tmp_path / "sub").mkdir()
    assert has_events(inotify)
    events = list(inotify.read())
    assert [(event.mask, event.name) for event in events] == [
        (CREATE, "a"),
        (CLOSE_WRITE, "a"),
        (ATTRIB, "a"),
        (MOVED_FROM, "a"),
        (MOVED_TO, "longer name"),
        (DELETE, "longer name"),
        (CREATE | ISDIR, "sub"),
    ]
    assert {event.watch for event in events} == {watch}


def test_nothing_is_told_when_nothing_happened_and_nobody_waits(inotify: Inotify, tmp_path: Path) -> None:
    inotify.add(str(tmp_path), CREATE)
    assert not has_events(inotify)
    assert heard(inotify) == []


def test_only_what_was_asked_for_is_told(inotify: Inotify, tmp_path: Path) -> None:
    inotify.add(str(tmp_path), DELETE)
    (tmp_path / "a").touch()
    (tmp_path / "a").unlink()
    assert heard(inotify) == [(DELETE, "a")]


def test_two_folders_are_told_apart(inotify: Inotify, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (inotify.add(str(folder), CREATE) for folder in folders)
    for folder in reversed(folders):
        (folder / "a").touch()
    assert [event.watch for event in inotify.read()] == [two, one]


def test_a_second_watch_of_a_folder_is_the_same_with_the_new_mask(inotify: Inotify, tmp_path: Path) -> None:
    assert inotify.add(str(tmp_path), CREATE) == inotify.add(f"{tmp_path}/.", DELETE)
    (tmp_path / "a").touch()
    (tmp_path / "a").unlink()
    assert heard(inotify) == [(DELETE, "a")]


def test_a_name_of_any_bytes_is_told(inotify: Inotify, tmp_path: Path) -> None:
    inotify.add(str(tmp_path), CREATE)
    (tmp_path / "odd\udcff").touch()
    assert heard(inotify) == [(CREATE, "odd\udcff")]


def test_more_than_fits_in_one_reading_comes_with_the_next_ones(inotify: Inotify, tmp_path: Path) -> None:
    inotify.add(str(tmp_path), CREATE)
    names = [f"{number:03d}{'x' * 247}" for number in range(500)]
    for name in names:
        (tmp_path / name).touch()
    found = []
    while has_events(inotify):
        found += [event.name for event in inotify.read()]
    assert found == names


def test_a_removed_watch_tells_its_end_and_nothing_more(inotify: Inotify, tmp_path: Path) -> None:
    watch = inotify.add(str(tmp_path), CREATE)
    inotify.remove(watch)
    (tmp_path / "a").touch()
    assert list(inotify.read()) == [FolderEvent(watch=watch, mask=IGNORED, name="")]
    inotify.remove(watch)  # no error


def test_a_folder_that_goes_ends_its_watch(inotify: Inotify, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    inotify.add(str(folder), DELETE_SELF)
    folder.rmdir()
    assert heard(inotify) == [(DELETE_SELF, ""), (IGNORED, "")]


def test_what_cannot_be_watched_is_an_error_with_its_path(inotify: Inotify, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, code in ((tmp_path / "none", errno.ENOENT), (file, errno.ENOTDIR)):
        with pytest.raises(OSError, match=path.name) as caught:
            inotify.add(str(path), CREATE | ONLYDIR)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))


def test_no_program_that_is_started_has_the_descriptor_and_closing_ends_it() -> None:
    inotify = Inotify()
    fd = inotify.fileno()
    assert not os.get_inheritable(fd)
    inotify.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
