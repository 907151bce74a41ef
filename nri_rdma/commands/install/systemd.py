"""The systemd unit of the daemon: the packaged unit file with the path of the installed program."""

from __future__ import annotations

import re
from pathlib import Path

from nri_rdma.commands.common.changes import OwnFile

UNIT = "nri-rdma.service"
FOLDER = Path("/etc/systemd/system")
WANTED_BY = FOLDER / "multi-user.target.wants" / UNIT
"""The link that makes systemd start the enabled unit at boot."""
_BEGINNING = b"[Unit]\nDescription=RDMA devices for containers (NRI plugin)\n"
_PROGRAM = re.compile(r"(?<=^ExecStart=)\S+", re.MULTILINE)
_PLAIN = re.compile(r"[\w./+-]+", re.ASCII)
"""Matches a path that means the same to systemd as it is; in others it splits words, and reads specifiers."""
_MODE = 0o644


def unit_file(packaged: str, program: Path) -> OwnFile:
    """Return the packaged unit file with `program` in its ExecStart."""
    text = _PROGRAM.sub(lambda _: _word(str(program)), packaged)
    return OwnFile(path=FOLDER / UNIT, data=text.encode(), is_ours=lambda data: data.startswith(_BEGINNING), mode=_MODE)


def _word(path: str) -> str:
    """Return a path as systemd reads it as one word."""
    if _PLAIN.fullmatch(path):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
