"""Check of the CDI devices of podman and Docker: their hook program is installed, and no device leaves its netdev to
the OCI runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nri_rdma.cdi.registry import ResolvedDevice
from nri_rdma.commands.cdi.hooked_devices import MODULE, PROGRAM
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.install.hook import OWN_FIX
from nri_rdma.host.cdi.folder import read_registry
from nri_rdma.host.engine_setups import OCI_HOOK
from nri_rdma.host.hook_program import fault_with_interpreter, foreign_at

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

_CHECK = "OCI hooks"


def hooks(machine: Machine) -> Finding:
    """Check that each hook program named in a CDI device exists and is ours. Report CDI devices with `netDevices`,
    because with podman or Docker nothing returns such a netdev to the host."""
    devices = tuple(read_registry(machine.settings.cdi_dirs).devices.values())
    paths = sorted({path for device in devices for path in _hook_paths(device)})
    for path in paths:
        if fault := fault_with_interpreter(Path(path)):
            found = f"{fault}, and CDI devices need it: no container with them starts"
            return problem(_CHECK, found, _copy_to(Path(path)))
        if foreign := foreign_at(Path(path)):
            return problem(_CHECK, foreign, OWN_FIX)
    movers = tuple(_movers(devices))
    if movers:
        found = f"{movers[0]} has netDevices: where podman or Docker reads that, nobody brings the netdev back"
        fix = "have nri-rdma move netdevs for podman and Docker: `nri-rdma cdi generate --hooks` (docs/podman.md)"
        return warning(_CHECK, found, fix)
    if not paths:
        return not_applicable(_CHECK, "no CDI device brings the hook of podman and Docker")
    return ok(_CHECK, f"CDI devices bring {', '.join(paths)}")


def _copy_to(path: Path) -> str:
    """Return the command that installs the hook program at the path. Outside of the default folder the program's module
    is installed beside it."""
    if path == OCI_HOOK:
        return "nri-rdma install podman, or install docker"
    module = f"install -D -m 644 /opt/nri-rdma/bin/{MODULE} {path.with_name(MODULE)}"
    return f"{module} && install -D -m 755 /opt/nri-rdma/bin/{PROGRAM} {path} (docs/podman.md)"


def _hook_paths(device: ResolvedDevice) -> Iterator[str]:
    for hook in (*device.spec_edits.hooks, *device.device.edits.hooks):
        if hook.args[:1] == (PROGRAM,):
            yield hook.path


def _movers(devices: Iterable[ResolvedDevice]) -> Iterator[str]:
    """Yield the names of the CDI devices with `netDevices`, which the OCI runtime moves into the container."""
    for device in devices:
        if device.net_devices:
            yield device.name
