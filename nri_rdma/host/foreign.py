"""Who else than root could replace a file: the folders on the way to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def foreign_folder(folder: Path) -> str:
    """Return the first folder on the way, this one included, in which others than root may replace a file, with its
    owner and mode; "" where there is none. A folder that is not there is none. Raises OSError, also for links that lead
    in a circle."""
    for path in _way(folder.absolute()):
        try:
            found = path.stat()
        except FileNotFoundError:
            return ""
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in {0, os.geteuid()} or others_write:
            return f"{path} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _way(path: Path) -> Iterator[Path]:
    """Yield the folders from the root to this path, also those to which links on the way lead."""
    for step in (*reversed(path.parents), path):
        yield step
        if step.is_symlink():
            yield from _way(step.parent / step.readlink())
