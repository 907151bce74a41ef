"""The guard's hook in the rig's runtimes: an OCI configuration for containerd, a definition for CRI-O."""

import json
import subprocess
import sys
from pathlib import Path

from tests.rig import cache

HOOK = cache.PROJECT / "hooks/nri-rdma-hook"
MODULE = HOOK.with_name("nri_rdma_hook.py")
GUARDED = "guarded"
"""The runtime handler of containerd whose containers are guarded; CRI-O has hooks for all of its handlers."""


def checkpoint(run: Path) -> Path:
    """Where the hook of that runtime looks for the checkpoint of its kubelet; that one's other folders are beside."""
    return run / "kubelet/dra_manager_state"


def flags(run: Path) -> tuple[str, ...]:
    """The hook's flags for a runtime with that run directory."""
    return "--control-socket", str(run / "nri-rdma/control.sock"), "--kubelet-checkpoint", str(checkpoint(run))


def write_guarded_spec(path: Path, run: Path) -> None:
    """As docs/guard.md says: what containerd starts from, and the hook."""
    base = subprocess.run([str(cache.CTR), "oci", "spec"], capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-I", "-S", str(HOOK), "spec", *flags(run)]
    path.write_text(subprocess.run(command, input=base, capture_output=True, text=True, check=True).stdout)


def write_definition(folder: Path, run: Path) -> None:
    """The project's own for CRI-O, with the rig's paths."""
    definition = json.loads((cache.PROJECT / "hooks/nri-rdma-guard.json").read_text())
    hook = definition["hook"]
    hook["path"] = str(HOOK)
    hook["args"] += flags(run)
    (folder / "nri-rdma-guard.json").write_text(json.dumps(definition))
