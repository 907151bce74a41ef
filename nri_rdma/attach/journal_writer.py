"""Reads and writes journal records for attachments. A failed write refuses an attach, but never stops the return of
devices."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.transaction import Boundary
from nri_rdma.errors import AttachError, NriRdmaError

log = logging.getLogger(__name__)


class JournalWriter:
    """Reads, writes and removes the journal records of attachments. It calls `boundary`, a hook for tests, before and
    after each change."""

    def __init__(self, journal: Journal, boundary: Boundary) -> None:
        self._journal = journal
        self._boundary = boundary

    def load(self, boot_id: str) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return the journal's records, and one error for each file that was set aside. A record of another boot than
        `boot_id` is removed, because a reboot ends all moves."""
        records, errors = self._journal.load()
        for record in records:
            if record.namespace is not None and record.namespace.boot_id != boot_id:
                log.info("record removed: its moves ended with that boot", extra={"pod": str(record.pod)})
                self._journal.remove(record.key)
        kept = (it for it in records if it.namespace is None or it.namespace.boot_id == boot_id)
        return tuple(kept), errors

    def refuse_unwritable(self, record: SandboxRecord) -> None:
        """Raise AttachError if the journal has no room for the record. A planner thread calls this while the pod can
        still be refused; a worker thread writes the record later."""
        try:
            has_room = self._journal.has_room()
        except OSError as error:
            raise _unwritten(record, error.errno) from error
        if not has_room:
            raise _unwritten(record, errno.ENOSPC)

    def write(self, record: SandboxRecord) -> None:
        """Write the record. Raises AttachError."""
        self._boundary(f"before write-journal {record.key}")
        try:
            self._journal.write(record)
        except OSError as error:
            raise _unwritten(record, error.errno) from error
        self._boundary(f"after write-journal {record.key}")

    def note_plan(self, attachment: Attachment) -> None:
        """Record which devices the pod gets, so that a restarted daemon knows. A failed write is only logged: the
        attach then fails anyway, since it must write its whole plan first."""
        assert attachment.now.record is not None  # it is planned
        try:
            self.write(attachment.now.record)
        except AttachError as error:
            log.warning("journal not written", extra={"pod": str(attachment.pod), "error": str(error)})

    def note_returning(self, attachment: Attachment, record: SandboxRecord) -> None:
        """Record that the devices are being returned, so that a restarted daemon goes on with the return. A failed
        write is only logged, because the devices are returned in any case."""
        if record.state is Phase.RETURNING:
            return
        returning = replace(record, state=Phase.RETURNING)
        attachment.change(record=returning)
        self._boundary(f"before write-journal {record.key}")
        try:
            self._journal.write(returning)
        except OSError as error:  # a full disk must not stop the return of devices
            log.warning("journal not written", extra={"pod": str(attachment.pod), "error": str(error)})
        self._boundary(f"after write-journal {record.key}")

    def forget(self, key: str) -> None:
        """Remove the record with this key, because all its devices are restored on the host."""
        self._boundary(f"before forget-journal {key}")
        self._journal.remove(key)
        self._boundary(f"after forget-journal {key}")


def _unwritten(record: SandboxRecord, number: int | None) -> AttachError:
    return AttachError(
        f"the journal cannot be written: {os.strerror(number or 0)}",
        device=record.device_names,
        where=str(record.pod),
        hint="make room in the file system of the state directory",
        errno=number,
    )
