"""Writes CDI spec files atomically: a runtime sees either the old file or the new one."""

from __future__ import annotations

from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.spec import Spec
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.host.whole_file import write_whole

FILE_MODE = 0o644
"""The mode of a spec file: readable by all, because some runtimes that read specs do not run as root."""


def write_spec(spec: Spec, directory: Path, name: str) -> Path:
    """Write the spec as the file `name` in the directory, which is created if missing, and return the file's path.
    Raises OSError if a write fails.

    The data first goes to a temporary file. Runtimes do not read it, because its name does not end in a suffix of CDI
    specs.
    """
    target = directory / name
    write_whole(target, encode(spec), FILE_MODE)
    return target


def write_own_spec(spec: Spec, directory: Path, name: str) -> None:
    """Write a spec of the daemon's own devices as the file `name` in the directory. Raises CdiError if the write
    fails."""
    try:
        write_spec(spec, directory, name)
    except OSError as error:
        raise _refused("written", directory / name, error) from error


def remove_own_spec(directory: Path, name: str) -> bool:
    """Remove the file `name` with a spec of the daemon's own devices. Return whether the file existed. Raises CdiError
    if it cannot be removed."""
    target = directory / name
    try:
        target.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        if not target.exists():  # a read-only file system refuses even if there is no such file
            return False
        raise _refused("removed", target, error) from error
    return True


def _refused(what: str, file: Path, error: OSError) -> CdiError:
    hint = f"let the daemon write into {file.parent}: in a container mount hostPath {file.parent} there, writable"
    return CdiError(
        ErrorCode.CDI_FILE, f"the CDI spec cannot be {what}: {error.strerror or error}", file=str(file), hint=hint
    )
