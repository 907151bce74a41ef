"""A file is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_rdma.host.whole_file import write_whole


def test_modes_are_ours_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "a/b/file", b"text", 0o755)
    finally:
        os.umask(before)
    modes = [(tmp_path / it).stat().st_mode & 0o777 for it in ("a", "a/b", "a/b/file")]
    assert modes == [0o755, 0o755, 0o755]


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new", 0o644)
    assert [(it.name, it.read_bytes()) for it in tmp_path.iterdir()] == [("file", b"old")]


def test_a_link_in_its_place_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"kept")
    (tmp_path / "file").symlink_to("other")
    write_whole(tmp_path / "file", b"new", 0o644)
    assert ((tmp_path / "other").read_bytes(), (tmp_path / "file").is_symlink()) == (b"kept", False)
