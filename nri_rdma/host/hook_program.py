"""A hook on this host: whether the OCI runtime can start it, and who else could replace it."""

from __future__ import annotations

import os
from pathlib import Path

from nri_rdma.host.foreign import foreign_folder


def fault_of(program: Path, module_name: str = "") -> str:
    """Return what keeps a hook from being run; "" if nothing does. Its module has its name unless another is given."""
    if not is_program(program):
        return f"{program} is not there or no program"
    module = program.with_name(module_name or f"{program.name.replace('-', '_')}.py")
    needs_module = module.stem.encode() in program.read_bytes()  # those of earlier releases are one file
    return f"{module} is not there" if needs_module and not os.access(module, os.R_OK) else ""


def is_program(path: Path) -> bool:
    """Return whether this is a file that we may execute."""
    return path.is_file() and os.access(path, os.X_OK)


def foreign_at(program: Path) -> str:
    """Return how others than root could replace a hook's program, its module or the compiled code of that, "" where
    they cannot: root runs it."""
    folder = foreign_folder(program.with_name("__pycache__"))
    return f"others than root may replace files in {folder}" if folder else ""
