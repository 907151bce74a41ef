"""The journal as attachments use it: when it refuses, when it goes on, and its boundaries."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.journal_writer import JournalWriter
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import NamespaceIdentity
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.transaction import no_boundary
from nri_rdma.errors import AttachError
from tests.unit.attach.builders import POD_PATH, make_pod

THIS_BOOT, OTHER_BOOT = "this-boot", "other-boot"


def _record(sandbox_id: str = "sandbox-1", boot_id: str | None = THIS_BOOT) -> SandboxRecord:
    namespace = NamespaceIdentity(boot_id=boot_id, cookie=1, path=POD_PATH) if boot_id is not None else None
    return SandboxRecord(
        pod=make_pod(sandbox_id),
        state=Phase.ATTACHED,
        namespace=namespace,
        plan=Plan(),
        attached=(),
        rdma_cm=None,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """The journal in a folder of its own."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def writer(journal: Journal) -> JournalWriter:
    """Writes into it."""
    return JournalWriter(journal, no_boundary)


def _stored(journal: Journal) -> tuple[SandboxRecord, ...]:
    records, errors = journal.load()
    assert not errors
    return records


def test_a_record_of_another_boot_is_removed_and_those_without_a_namespace_are_kept(
    journal: Journal, writer: JournalWriter
) -> None:
    ours, others, plain = _record(), _record("sandbox-2", OTHER_BOOT), _record("sandbox-3", None)
    for record in (ours, others, plain):
        writer.write(record)
    assert writer.load(THIS_BOOT) == ((ours, plain), ())
    assert _stored(journal) == (ours, plain)


def test_a_change_has_its_boundary_before_and_after(journal: Journal) -> None:
    passed: list[tuple[str, int]] = []
    writer = JournalWriter(journal, lambda place: passed.append((place, len(_stored(journal)))))
    writer.write(_record())
    writer.forget("sandbox-1")
    assert passed == [
        ("before write-journal sandbox-1", 0),
        ("after write-journal sandbox-1", 1),
        ("before forget-journal sandbox-1", 1),
        ("after forget-journal sandbox-1", 0),
    ]


def test_a_plan_that_cannot_be_written_down_is_left_to_the_attach(
    writer: JournalWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attachment = Attachment(make_pod(), _record())
    shutil.rmtree(tmp_path / "journal")
    writer.note_plan(attachment)
    assert [it.getMessage() for it in caplog.records] == ["journal not written"]
    with pytest.raises(AttachError, match="the journal cannot be written: No such file or directory"):
        writer.write(_record())
    with pytest.raises(AttachError, match="the journal cannot be written: No such file or directory"):
        writer.refuse_unwritable(_record())


def test_the_way_home_is_written_once(journal: Journal, writer: JournalWriter) -> None:
    record = _record()
    attachment = Attachment(make_pod(), record)
    writer.note_returning(attachment, record)
    returning = replace(record, state=Phase.RETURNING)
    assert (attachment.now.record, _stored(journal)) == (returning, (returning,))
    journal.remove(record.key)
    writer.note_returning(attachment, returning)
    assert _stored(journal) == ()


def test_the_way_home_goes_on_where_it_cannot_be_written(writer: JournalWriter, tmp_path: Path) -> None:
    record = _record()
    attachment = Attachment(make_pod(), record)
    shutil.rmtree(tmp_path / "journal")
    writer.note_returning(attachment, record)
    assert attachment.now.record == replace(record, state=Phase.RETURNING)
