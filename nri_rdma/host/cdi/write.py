"""Write a spec's file atomically: a runtime sees the old file or the new one."""

from __future__ import annotations

from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.spec import Spec
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.host.whole_file import write_whole

FILE_MODE = 0o644
"""Runtimes that do not run as root read specs, too."""


def write_spec(spec: Spec, directory: Path, name: str) -> Path:
    """Write the spec as `name` into the directory, and create a missing directory. Raises OSError.

    The unfinished file's name has none of the suffixes that runtimes read.
    """
    target = directory / name
    write_whole(target, encode(spec), FILE_MODE)
    return target


def write_own_spec(spec: Spec, directory: Path, name: str) -> None:
    """Do the same for a spec of the daemon's own. Raises CdiError."""
    try:
        write_spec(spec, directory, name)
    except OSError as error:
        raise _refused("written", directory / name, error) from error


def remove_own_spec(directory: Path, name: str) -> bool:
    """Remove a spec of the daemon's own; return whether there was one. Raises CdiError."""
    target = directory / name
    try:
        target.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        if not target.exists():  # a read-only file system refuses before it looks for the file
            return False
        raise _refused("removed", target, error) from error
    return True


def _refused(what: str, file: Path, error: OSError) -> CdiError:
    hint = f"let the daemon write into {file.parent}: in a container mount hostPath {file.parent} there, writable"
    return CdiError(
        ErrorCode.CDI_FILE, f"the CDI spec cannot be {what}: {error.strerror or error}", file=str(file), hint=hint
    )
