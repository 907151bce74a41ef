"""Lines outlive a process that is killed, are bounded in size, and a file that cannot be read is put aside."""

import logging
import resource
from pathlib import Path

import pytest

from nri_rdma.daemon.past_file import PastFile


def decoded(line: bytes) -> bytes | None:
    return line if line.startswith(b"{") else None


def read(file: PastFile) -> list[bytes]:
    return [*file.read(decoded)]


def test_what_was_appended_is_read_by_the_next_process(tmp_path: Path) -> None:
    assert read(PastFile(tmp_path)) == []
    PastFile(tmp_path).append([b"{1", b"{2"])
    PastFile(tmp_path).append([b"{3"])
    assert read(PastFile(tmp_path)) == [b"{1", b"{2", b"{3"]
    assert (tmp_path / "past.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_newest_lines_are_kept_within_two_files(tmp_path: Path) -> None:
    file = PastFile(tmp_path, file_bytes=100)
    for number in range(200):
        file.append([b"{%d" % number])
    kept = read(PastFile(tmp_path, file_bytes=100))
    assert kept == [b"{%d" % number for number in range(200 - len(kept), 200)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 250
    assert len(kept) >= 20


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_line_that_was_being_written_is_passed_over(tmp_path: Path, cut: int) -> None:
    file = PastFile(tmp_path)
    file.append([b"{first}", b"{second}"])
    with file.path.open("r+b") as opened:
        opened.truncate(file.path.stat().st_size - cut)
    after = PastFile(tmp_path)
    assert read(after) == [b"{first}"]
    after.append([b"{third}"])
    assert read(PastFile(tmp_path)) == [b"{first}", b"{third}"]


def test_a_file_that_cannot_be_read_is_told_and_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = PastFile(tmp_path)
    file.append([b"{first}", b"\0\0\0", b"{third}"])
    with caplog.at_level(logging.ERROR):
        assert read(file) == [b"{first}", b"{third}"]
    (record,) = caplog.records
    aside = tmp_path / "past.jsonl.unreadable"
    assert (record.file, record.lines) == (str(aside), 1)  # type: ignore[attr-defined]  # extra fields
    assert (aside.exists(), file.path.exists()) == (True, False)


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "past.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="Too many levels"):
        PastFile(tmp_path).append([b"{1"])
    assert not (tmp_path / "other").exists()


def test_of_a_file_that_is_far_too_long_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "past.jsonl").write_bytes(b"".join(b"{%05d\n" % number for number in range(1000)))
    kept = read(PastFile(tmp_path, file_bytes=100))
    assert kept[-1] == b"{00999"
    assert len(kept) < 30


def test_of_lines_that_have_no_room_nothing_is_left(tmp_path: Path) -> None:
    """A limit of a file's size stands for a full folder: the kernel writes what has room, then refuses the rest."""
    file = PastFile(tmp_path)
    file.append([b"{first}"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.append([b"{second}", b"{third}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.append([b"{later}"])
    assert file.path.read_bytes() == b"{first}\n{later}\n"
