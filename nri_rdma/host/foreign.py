"""Find folders in which users other than root could replace a file, by checking each folder on its path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def foreign_folder(folder: Path) -> str:
    """Return the first folder on the path to `folder`, itself included, that a user other than root can write to, with
    its owner and mode; "" if there is none.

    A missing folder counts as safe. Raises OSError if a folder cannot be inspected or symbolic links form a loop.
    """
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
    """Yield each folder from the root down to `path`. For a symbolic link on the way, also yield the folders on the
    path to its target."""
    for step in (*reversed(path.parents), path):
        yield step
        if step.is_symlink():
            yield from _way(step.parent / step.readlink())
