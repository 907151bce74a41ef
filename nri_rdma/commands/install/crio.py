"""The files that give CRI-O's containers the guard, an OCI hook that keeps a container from starting without its
devices: the hook program, and its definition in a folder that CRI-O reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from nri_rdma.commands.common.changes import OwnFile
from nri_rdma.commands.install.containerd import HOOK_TIMEOUT_S, is_guarded
from nri_rdma.text.share_annotations import GUARD_HOOK

DEFINITION = "nri-rdma-guard.json"
_STARTED = 19
"""The index of `starttime` among the fields of /proc/PID/stat that follow the command's name."""


def definition(folder: Path, hook: Path, flags: Sequence[str]) -> OwnFile:
    """Return the definition of the guard, an OCI hook that keeps a container from starting without its devices, in the
    format of oci-hooks(5).

    `hook` is the hook's program, and `flags` its arguments. hooks/nri-rdma-guard.json is the definition for default
    settings.
    """
    document = {
        "version": "1.0.0",
        "hook": {"path": str(hook), "args": [GUARD_HOOK, "verify", *flags], "timeout": HOOK_TIMEOUT_S},
        "when": {"always": True},
        "stages": ["createRuntime"],
    }
    data = f"{json.dumps(document, indent=2)}\n".encode()
    return OwnFile(path=folder / DEFINITION, data=data, is_ours=is_guarded)


def chosen_folder(folders: Sequence[Path]) -> Path:
    """Return the folder for the hook's definition: a folder that already contains it, otherwise the last folder that is
    not below /run."""
    having = [it for it in folders if (it / DEFINITION).exists()]
    lasting = [it for it in folders if not it.is_relative_to("/run")]
    return (having or lasting or list(folders))[-1]


def started_before(pid: int, folder: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether the process started before the folder's entries last changed. Raises OSError if the process has
    ended."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return folder.exists() and time.time() - age < folder.stat().st_mtime
