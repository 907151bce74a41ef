"""Files below a folder that a stranger has filled: nothing leads out of it, and nothing waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.root_folder import MOST_NAMES, RootFolder
from tests.rig.descriptors import open_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="openat2 is Linux's")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[RootFolder]:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "root/usr/lib").mkdir(parents=True)
    (tmp_path / "root/usr/lib/file").write_text("inside")
    folder = RootFolder(str(tmp_path / "root"))
    yield folder
    folder.close()
    folder.close()


def test_a_file_is_read_up_to_a_bound(root: RootFolder) -> None:
    assert root.read("/usr/lib/file", 100) == b"inside"
    assert root.read("usr/lib/../lib/file", 2) == b"in"
    assert root.has("/usr/lib/file")


@pytest.mark.parametrize("path", ["/none", "/usr/lib/file/more", "", "/usr/lib", "a\0b", "x" * 5000, "/\udcff"])
def test_where_there_is_no_file_there_is_none(root: RootFolder, path: str) -> None:
    assert not root.has(path)
    assert root.read(path, 10) == b""


@pytest.mark.parametrize("target", ["/outside", "../outside", "../../../../outside", "/proc/self/root/etc/passwd"])
def test_a_link_never_leads_out(tmp_path: Path, root: RootFolder, target: str) -> None:
    (tmp_path / "root/link").symlink_to(target)
    assert not root.has("/link")


def test_an_absolute_link_is_one_within_the_root(tmp_path: Path, root: RootFolder) -> None:
    (tmp_path / "root/lib").symlink_to("/usr/lib")
    (tmp_path / "root/usr/lib/library.so").symlink_to("/lib/file")
    assert root.read("/lib/library.so", 100) == b"inside"


def test_links_in_a_circle_are_no_file(tmp_path: Path, root: RootFolder) -> None:
    (tmp_path / "root/one").symlink_to("two")
    (tmp_path / "root/two").symlink_to("one")
    assert not root.has("/one")


def test_a_fifo_is_not_waited_for(tmp_path: Path, root: RootFolder) -> None:
    os.mkfifo(tmp_path / "root/fifo")
    assert not root.has("/fifo")
    assert root.names("/fifo") == []


def test_the_names_in_a_folder_are_bounded(tmp_path: Path, root: RootFolder) -> None:
    assert root.names("/usr/lib") == ["file"]
    assert root.names("/none") == []
    for number in range(MOST_NAMES + 5):
        (tmp_path / f"root/usr/{number}").touch()
    assert len(root.names("/usr")) == MOST_NAMES


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RootFolder(str(tmp_path / "none"))


def test_no_descriptor_is_left(tmp_path: Path, root: RootFolder) -> None:
    before = open_descriptors()
    for path in ("/usr/lib/file", "/usr/lib", "/none"):
        root.read(path, 1)
        root.names(path)
    assert open_descriptors() <= before
