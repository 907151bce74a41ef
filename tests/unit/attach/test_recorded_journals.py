"""Journals that earlier releases wrote (tests/recorded) are read whole; what takes them over is in tests/kernel."""

from pathlib import Path
from typing import Any

import pytest

from nri_rdma.attach.journal import Journal
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.errors import ErrorCode
from nri_rdma.model.request import Mode
from tests.recorded.recording import Here, Recording, checksum_of, in_place, record_in, recordings, with_record

RECORDINGS = recordings()
each_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda it: it.release)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def store(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def read(recording: Recording, journal: Journal, folder: Path) -> dict[str, SandboxRecord]:
    """Its records by the names of their files."""
    store(folder, dict(recording.journal))
    records, errors = journal.load()
    assert errors == ()
    return {f"{record.key}.json": record for record in records}


def test_there_is_a_recording() -> None:
    assert RECORDINGS


@each_recording
def test_every_record_is_read_and_none_set_aside(recording: Recording, journal: Journal, tmp_path: Path) -> None:
    assert read(recording, journal, tmp_path).keys() == recording.journal.keys()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == recording.journal


@each_recording
def test_what_is_read_is_what_was_written(recording: Recording, journal: Journal, tmp_path: Path) -> None:
    for name, record in read(recording, journal, tmp_path).items():
        written = record_in(recording.journal[name])
        assert (record.state, record.part, record.pod.name) == (
            written["state"],
            written["part"],
            written["pod"]["name"],
        )
        assert record.device_names == ", ".join(
            it["device"]["name"] for request in written["attached"] for it in request["devices"]
        )
        assert [(move.link.name, move.link.sysctls, len(move.link.routes)) for move in record.plan.moves] == [
            (move["link"]["name"], move["link"]["sysctls"], len(move["link"]["routes"]))
            for move in written["plan"]["moves"]
        ]


@each_recording
def test_every_kind_of_attach_is_recorded(recording: Recording, journal: Journal, tmp_path: Path) -> None:
    records = read(recording, journal, tmp_path).values()
    kinds = {
        (record.state, bool(record.part), item.admitted.mode, bool(record.plan.moves))
        for record in records
        for item in record.attached
    }
    assert kinds >= {
        (Phase.ATTACHED, False, Mode.EXCLUSIVE, True),
        (Phase.ATTACHED, False, Mode.SHARED, False),
        (Phase.ATTACHED, True, Mode.EXCLUSIVE, True),
        (Phase.PLANNED, False, Mode.EXCLUSIVE, False),
        (Phase.ATTACHING, False, Mode.EXCLUSIVE, True),
        (Phase.ATTACHING, True, Mode.EXCLUSIVE, True),
        (Phase.RETURNING, False, Mode.EXCLUSIVE, True),
    }
    assert any(record.process is not None for record in records), "a pod on the host's network"


@each_recording
def test_the_checksum_is_the_one_that_readme_describes(recording: Recording) -> None:
    """So what the tests put in the place of a machine's own values passes for the release's own."""
    for data in recording.journal.values():
        assert f'"checksum": "{checksum_of(record_in(data))}"'.encode() in data


@each_recording
def test_only_what_is_a_machines_own_is_put_in_another_machines_place(recording: Recording) -> None:
    here = Here(boot_id="b", netns=Path("/n"), cookie=7, process=(8, 9), pod_ifindexes=dict.fromkeys(range(100), 5))
    mine = {"boot_id", "cookie", "path", "netns_path", "pid", "start", "pod_ifindex"}
    for data in recording.journal.values():
        assert without(record_in(in_place(data, here)), mine) == without(record_in(data), mine)


def without(value: Any, keys: set[str]) -> Any:
    """A JSON value without what stands under these keys; their absence, and null, are told."""
    match value:
        case dict():
            return {key: item is None if key in keys else without(item, keys) for key, item in value.items()}
        case list():
            return [without(item, keys) for item in value]
    return value


def with_unknown_field(data: bytes, *path: str | int) -> bytes:
    """A journal file whose record has one field more, in the object at that path."""
    record: Any = record_in(data)
    place = record
    for key in path:
        place = place[key]
    place["of_another_release"] = 1
    return with_record(data, record)


@each_recording
@pytest.mark.parametrize("path", [(), ("pod",), ("plan",), ("attached", 0), ("attached", 0, "admitted", "request")])
def test_a_record_with_an_unknown_field_would_be_noticed(
    recording: Recording, journal: Journal, tmp_path: Path, path: tuple[str | int, ...]
) -> None:
    store(tmp_path, {name: with_unknown_field(data, *path) for name, data in recording.journal.items()})
    records, errors = journal.load()
    assert records == ()
    assert [error.code for error in errors] == [ErrorCode.STATE_UNREADABLE] * len(recording.journal)
    assert len(list(tmp_path.glob("*.unreadable"))) == len(recording.journal)
