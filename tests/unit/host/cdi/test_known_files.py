"""A file that has not changed since it was read is not opened again, and no change is missed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nri_rdma.host.cdi.folder import scan_by
from nri_rdma.host.cdi.known_files import SETTLED_S, KnownFiles

SPEC = '{"cdiVersion": "0.6.0", "kind": "ve/cl", "devices": [{"name": "%s", "containerEdits": {"env": ["A=1"]}}]}'
LATER_S = 10.0
"""So much later nobody doubts the times of a file that a test has just written."""


class Reader:
    """Reads a folder again and again; `opened` are the files that the last reading opened."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float = LATER_S) -> None:
        self._folder = folder
        self._known = KnownFiles(lambda: time.time() + ahead_s)
        self.opened: list[str] = []
        really_open = os.open

        def noting(path: str, *arguments: int, **options: int) -> int:
            self.opened += [path] if str(path).endswith(".json") else []
            return really_open(path, *arguments, **options)

        monkeypatch.setattr(os, "open", noting)

    def names(self) -> list[str]:
        """Read, and return the names of the devices, or what is wrong."""
        self.opened.clear()
        found = scan_by([self._folder], self._known.read)
        self._known.forget_others()
        return [device.name for file in found.specs for device in file.spec.devices] + [
            it.code for it in found.problems
        ]


def test_only_a_file_that_has_changed_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / f"{name}.json").write_text(SPEC % name)
    reader = Reader(tmp_path, monkeypatch)
    assert (reader.names(), reader.opened) == (["a", "b", "c"], ["a.json", "b.json", "c.json"])
    assert (reader.names(), reader.opened) == (["a", "b", "c"], [])
    (tmp_path / "b.json").write_text(SPEC % "B")
    (tmp_path / "d.json").write_text(SPEC % "d")
    assert (reader.names(), reader.opened) == (["a", "B", "c", "d"], ["b.json", "d.json"])


@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_a_change_of_the_same_length_with_the_same_time_is_noticed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text(SPEC % "a")
    reader = Reader(tmp_path, monkeypatch)
    assert reader.names() == ["a"]
    before = file.stat()
    other = file if how == "in place" else tmp_path / "other"
    time.sleep(0.02)  # more than a tick of the kernel's clock
    other.write_text(SPEC % "b")
    other.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reader.names() == ["b"]


def test_a_file_that_has_just_changed_is_read_until_its_times_would_tell_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text(SPEC % "a")
    reader = Reader(tmp_path, monkeypatch, ahead_s=-LATER_S)  # as if it were written in this moment, whenever it is
    assert [(reader.names(), list(reader.opened)) for _ in range(2)] == [(["a"], ["a.json"])] * 2
    assert SETTLED_S >= 0.01  # a tick of a kernel with CONFIG_HZ=100


def test_a_link_is_followed_each_time_because_it_stays_while_its_target_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").symlink_to("target")
    (tmp_path / "target").write_text(SPEC % "a")
    reader = Reader(tmp_path, monkeypatch)
    assert reader.names() == ["a"]
    (tmp_path / "target").write_text(SPEC % "b")
    assert reader.names() == ["b"]


def test_a_file_that_comes_back_is_read_anew_and_a_broken_one_stays_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text(SPEC % "a")
    reader = Reader(tmp_path, monkeypatch)
    assert reader.names() == ["a"]
    file.unlink()
    assert reader.names() == []
    file.write_text("{")
    assert reader.names() == ["CDI-SYNTAX"] == reader.names()
