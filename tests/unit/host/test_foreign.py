"""Who else than root could replace a file is known from the folders on the way to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_rdma.host.foreign import foreign_folder


def test_folders_of_ours_are_fine_also_below_a_sticky_one_and_where_they_are_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky/b").mkdir(mode=0o755)
    for path in ("a", "a/none/none", "sticky/b"):
        assert foreign_folder(tmp_path / path) == ""


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_one_that_others_may_write_is_named_with_its_mode(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a").chmod(mode)
    assert foreign_folder(tmp_path / "a/b") == f"{tmp_path / 'a'} (owner {os.geteuid()}, mode {mode:04o})"


def test_each_link_on_the_way_is_followed_step_by_step(tmp_path: Path) -> None:
    (tmp_path / "theirs/inner").mkdir(parents=True)
    (tmp_path / "theirs").chmod(0o777)
    (tmp_path / "real").mkdir()
    (tmp_path / "theirs/inner/next").symlink_to(tmp_path / "real")
    (tmp_path / "first").symlink_to("theirs/inner/next")
    assert foreign_folder(tmp_path / "first").startswith(str(tmp_path / "theirs"))


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        foreign_folder(tmp_path / "a")
