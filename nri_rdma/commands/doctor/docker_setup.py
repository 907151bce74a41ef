"""Check of the files that `nri-rdma install docker` wrote: without them, Docker containers that ask by annotations do
not start, or start without their devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem
from nri_rdma.commands.install.docker_files import RUNTIME, DockerFiles
from nri_rdma.commands.install.hook import OWN_FIX, HookSettings
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.hook_program import fault_with_interpreter, foreign_at

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

_CHECK = "Docker"
_FIX = "nri-rdma install docker"


def docker(machine: Machine) -> Finding:
    """Check three files that Docker needs: the shim in front of the OCI runtime, our OCI runtime, and the hook program.
    Each must exist and be of this release with these settings."""
    files = DockerFiles(settings=HookSettings.of(machine.settings), root=machine.etc.parent)
    if not files.shim.path.exists():
        return not_applicable(_CHECK, "Docker is not set up for annotations", _FIX)
    for file in (files.shim, files.oci_runtime):
        if not os.access(file.path, os.X_OK):
            return problem(_CHECK, f"{file.path} is not there or no program: no container with {RUNTIME} starts", _FIX)
        if file.path.read_bytes() != file.data:
            return problem(_CHECK, f"{file.path} is for other settings, or of another release", _FIX)
    fault, foreign = fault_with_interpreter(files.program), foreign_at(files.program)
    if fault or foreign:
        found, fix = (f"{fault}: no container with annotations starts", _FIX) if fault else (foreign, OWN_FIX)
        return problem(_CHECK, found, fix)
    try:
        files.refuse_lacking()
    except NriRdmaError as error:
        return problem(_CHECK, f"{error.what} ({error.where}): no container with {RUNTIME} starts", error.hint)
    return ok(_CHECK, f"containers with annotations ask if they are started with --runtime {RUNTIME}")
