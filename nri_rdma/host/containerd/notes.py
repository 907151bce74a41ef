"""Files that record refused sandboxes until they are cleaned up, so that the next daemon can continue after a SIGKILL.

There is one small file per sandbox in the state directory, which is emptied by a reboot.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

from nri_rdma.model.pod import Pod

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Matches sandbox ids that are safe as file names. Runtimes use hexadecimal ids."""
_FILE_BYTES = 4096


class RefusalNotes:
    """The records of sandboxes that the daemon refused, as files. No method raises: files that cannot be written or
    read are logged. Safe for use by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pod: Pod) -> None:
        """Record in a file that this sandbox was refused."""
        if not _ID.fullmatch(pod.sandbox_id):
            return
        text = json.dumps({"uid": pod.uid, "name": pod.name, "namespace": pod.namespace})
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            (self._folder / pod.sandbox_id).write_text(text)
        except OSError as error:
            facts = {"pod": str(pod), "sandbox": pod.sandbox_id, "error": str(error)}
            log.warning(
                "a refused sandbox cannot be noted: it is not cleaned up if the daemon is killed now", extra=facts
            )

    def discard(self, sandbox_id: str) -> None:
        """Remove the record of a sandbox, if there is one."""
        if not _ID.fullmatch(sandbox_id):
            return
        try:
            (self._folder / sandbox_id).unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "the note of a refused sandbox cannot be removed", extra={"sandbox": sandbox_id, "error": str(error)}
            )

    def read(self) -> tuple[Pod, ...]:
        """Return the sandboxes that an earlier daemon refused and did not clean up. Files that cannot be parsed are
        removed."""
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            log.warning("the notes of refused sandboxes cannot be read", extra={"error": str(error)})
            return ()
        pods = []
        for name in names:
            pod = self._read(name)
            if pod is not None:
                pods.append(pod)
            else:
                self.discard(name)
        return tuple(pods)

    def _read(self, name: str) -> Pod | None:
        try:
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fields = json.loads(os.read(fd, _FILE_BYTES))
            finally:
                os.close(fd)
            uid, pod_name, namespace = (str(fields[key]) for key in ("uid", "name", "namespace"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a note of a refused sandbox cannot be read", extra={"sandbox": name, "error": str(error)})
            return None
        return Pod(sandbox_id=name, uid=uid, name=pod_name, namespace=namespace, netns_path="")
