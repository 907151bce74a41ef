"""Notes of refused sandboxes outlive the daemon, and whatever else lies in their folder harms nobody."""

import os
from pathlib import Path

import pytest

from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.model.pod import Pod

ID = "0a" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "refused"


def pod(sandbox_id: str = ID) -> Pod:
    return Pod(sandbox_id=sandbox_id, uid="uid", name="late", namespace="default", netns_path="")


def test_another_daemon_reads_what_was_noted_and_not_discarded(folder: Path) -> None:
    notes = RefusalNotes(folder)
    assert notes.read() == ()
    for number in range(3):
        notes.add(pod(f"sandbox-{number}"))
    notes.discard("sandbox-1")
    notes.discard("sandbox-1")
    assert RefusalNotes(folder).read() == (pod("sandbox-0"), pod("sandbox-2"))
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("sandbox_id", ["../journal", "a/b", "", ".", "..", "a" * 200, "a\nb"])
def test_an_id_that_is_no_name_of_a_file_is_not_noted(folder: Path, sandbox_id: str) -> None:
    notes = RefusalNotes(folder)
    folder.mkdir()
    (folder.parent / "journal").touch()
    notes.add(pod(sandbox_id))
    notes.discard(sandbox_id)
    assert sorted(it.name for it in folder.parent.iterdir()) == ["journal", "refused"]
    assert list(folder.iterdir()) == []


def test_what_is_no_note_is_removed_and_keeps_nobody_waiting(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes = RefusalNotes(folder)
    notes.add(pod())
    (folder / "empty").touch()
    (folder / "list").write_text("[1]")
    (folder / "lacking").write_text('{"uid": "u"}')
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/dev/zero")
    assert notes.read() == (pod(),)
    assert [it.name for it in folder.iterdir()] == [ID]
    assert caplog.text.count("cannot be read") == 5


def test_a_full_or_missing_state_directory_is_told_and_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = RefusalNotes(tmp_path / "gone" / "refused")
    notes.add(pod())
    assert "is not cleaned up if the daemon is killed now" in caplog.text
    assert notes.read() == ()
