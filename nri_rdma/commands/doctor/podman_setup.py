"""Check of the files that `nri-rdma install podman` wrote: without them, podman containers that ask by annotations
start without their devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem
from nri_rdma.commands.install.hook import OWN_FIX, HookSettings
from nri_rdma.commands.install.podman_files import PodmanFiles
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.hook_program import fault_with_interpreter, foreign_at

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

_CHECK = "podman"
_FIX = "nri-rdma install podman"


def podman(machine: Machine) -> Finding:
    """Check that the hook definitions and the hook program exist, and are of this release with these settings. podman
    itself does not report a missing hook."""
    files = PodmanFiles(settings=HookSettings.of(machine.settings), root=machine.etc.parent)
    if not files.any_drop_in.path.exists():
        return not_applicable(_CHECK, "podman is not set up for annotations", _FIX)
    for file in files.definitions:
        if not file.path.is_file():
            return problem(_CHECK, f"{file.path} is not there: containers with annotations start without devices", _FIX)
        if file.path.read_bytes() != file.data:
            return problem(_CHECK, f"{file.path} is for other settings, or of another release", _FIX)
    fault, foreign = fault_with_interpreter(files.program), foreign_at(files.program)
    if fault or foreign:
        found, fix = (f"{fault}: no container with annotations starts", _FIX) if fault else (foreign, OWN_FIX)
        return problem(_CHECK, found, fix)
    try:
        files.refuse_hidden(files.any_drop_in.path.read_text())
    except NriRdmaError as error:
        return problem(_CHECK, f"{error.what}: {error.where}", error.hint)
    return ok(_CHECK, f"containers with annotations ask by the hooks in {files.folder}")
