"""Check for container engines on this machine that nri-rdma does not support. It tells their users why a container gets
no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

_CHECK = "other engines"
_FOLDERS = ("usr/bin", "usr/local/bin")
_UNSERVED = ("apptainer", "singularity", "enroot", "nerdctl")


def others(machine: Machine) -> Finding:
    """Return a finding that names the container engines installed here that nri-rdma does not support."""
    root = machine.etc.parent
    found = [name for name in _UNSERVED if any((root / folder / name).exists() for folder in _FOLDERS)]
    if not found:
        return ok(_CHECK, "none that nri-rdma does not serve")
    words = f"{' and '.join(found)}: nri-rdma does not serve their containers (docs/podman.md says why)"
    return not_applicable(_CHECK, words, "podman or Docker as root, or Kubernetes")
