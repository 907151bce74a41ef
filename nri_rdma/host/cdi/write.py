"""Write a spec's file atomically: a runtime sees the old file or the new one."""

from __future__ import annotations

from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.spec import Spec
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
