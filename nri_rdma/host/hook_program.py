"""Checks an OCI hook's program on this host: can the OCI runtime start it, and could a user other than root replace
it?"""

from __future__ import annotations

import os
from pathlib import Path

from nri_rdma.host.foreign import foreign_folder


def fault_of(program: Path, module_name: str = "") -> str:
    """Return the reason why the OCI hook at `program` cannot be run; "" if it can.

    The hook needs a Python module beside it. `module_name` is the module's file name, by default the program's name
    with underscores and ".py".
    """
    if not is_program(program):
        return f"{program} does not exist or is not executable"
    module = program.with_name(module_name or f"{program.name.replace('-', '_')}.py")
    needs_module = module.stem.encode() in program.read_bytes()  # hooks of earlier releases are one file
    return f"{module} is not there" if needs_module and not os.access(module, os.R_OK) else ""


def fault_with_interpreter(program: Path, module_name: str = "") -> str:
    """Return the reason why the OCI hook at `program` cannot be run on this host; "" if it can. Unlike `fault_of`, also
    look at the interpreter that its first line names."""
    if is_program(program) and not is_program(interpreter := interpreter_of(program)):
        return f"{interpreter}, with which {program} is run, does not exist or is not executable"
    return fault_of(program, module_name)


def interpreter_of(path: Path) -> Path:
    """Return the program that the first line of a script names; the file itself if it is not a script or cannot be
    read."""
    try:
        with path.open("rb") as file:
            line = file.readline(256).decode(errors="replace")
    except OSError:
        return path
    words = line[2:].split() if line.startswith("#!") else []
    return Path(words[0]) if words else path


def is_program(path: Path) -> bool:
    """Return whether `path` is a file that this process may execute."""
    return path.is_file() and os.access(path, os.X_OK)


def foreign_at(program: Path) -> str:
    """Return a warning if users other than root could replace the hook's program, its module or the module's compiled
    code; "" if they cannot. The OCI runtime runs the hook as root."""
    folder = foreign_folder(program.with_name("__pycache__"))
    return f"others than root may replace files in {folder}" if folder else ""
