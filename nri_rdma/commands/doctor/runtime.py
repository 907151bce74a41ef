"""Checks of the container runtime: its NRI socket, its abilities, its CDI support and its memory locking limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nri_rdma.commands.common.runtime_configs import crio_files, read_toml, table_at
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.doors.nri.peer import memlock_ceiling, served_by
from nri_rdma.doors.nri.runtime_link import hooks_only
from nri_rdma.errors import NotReadyError
from nri_rdma.host.containerd.cdi_setting import reads_cdi_specs
from nri_rdma.host.containerd.containerd_api import ContainerdError
from nri_rdma.model.pool import PoolDoor
from nri_rdma.model.request import UNLIMITED

CONTAINERD_TOML = """version = 2
[plugins."io.containerd.nri.v1.nri"]
disable = false
disable_connections = false"""
"""Lines for /etc/containerd/config.toml that turn NRI on. containerd before 2.0 has it off. Later releases accept
version 2 of the file, too."""
CDI_TOML = """[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true"""
"""Lines for /etc/containerd/config.toml that turn CDI on. containerd since 2.0 has it on by default."""
CRIO_TOML = """[crio.nri]
enable_nri = true"""
_CONTAINERD = "containerd"
_NEWER = "or update containerd to 2.2.6, 2.3.3 or later"
_CONTAINERD_PLUGIN = "io.containerd.nri.v1.nri"


def nri_socket(machine: Machine) -> Finding:
    """Check that the runtime has NRI enabled and lets plugins register."""
    path, seen = machine.settings.nri_socket, machine.runtime
    if why := _unneeded(machine):
        return ok("NRI socket", f"not needed: {why}")
    if seen.lacks_privilege:
        return not_applicable("NRI socket", f"{path}: this user may not connect", "run `nri-rdma doctor` as root")
    if seen.refused and machine.lacks(path.parent):
        found = f"the host's {path.parent} is not mounted into this container: the daemon hears of no pod"
        harm = "without a guard those with annotations start without devices"
        return problem(
            "NRI socket", f"{found}, and {harm}", f"mount hostPath {path.parent} into the daemon's container"
        )
    if seen.refused:
        return problem("NRI socket", f"{path}: {seen.refused}{_off_words(machine)}", _how_to_turn_on(machine))
    if seen.unheard:
        return problem(
            "NRI socket",
            f"{path}: a process listens, but does not let a plugin register ({seen.unheard})",
            "see the runtime's log; another plugin may keep it waiting",
        )
    return ok("NRI socket", f"{path}: the runtime lets plugins register")


def _unneeded(machine: Machine) -> str:
    """Return why the daemon needs no NRI socket; "" if it needs one."""
    daemon = machine.daemon
    if not isinstance(daemon, NotReadyError) and daemon["runtime"].get("launched"):
        return "the runtime has started the daemon itself"
    return hooks_only(machine.engines) if machine.engines else ""


def runtime(machine: Machine) -> Finding:
    """Report the runtime's name and versions, and the NRI features that it is known to lack."""
    facts = machine.runtime.runtime
    if facts is None:
        return not_applicable("runtime", "it could not be asked")
    name = f"{facts.name} {facts.version}".strip() or "a runtime without a name"
    found = f"{name}, NRI {facts.abilities.nri_text or 'of a release that is not known'}"
    if facts.abilities.lacks:
        lacks = "; ".join(facts.abilities.lacks)
        return warning("runtime", f"{found}; does not apply: {lacks}", "see docs/runtimes.md, or update the runtime")
    return ok("runtime", found)


def containerd_socket(machine: Machine) -> Finding:
    """Check that the daemon can connect to containerd, if this release of containerd leaves parts of refused pods
    behind. The daemon removes those parts through containerd's socket."""
    facts, path = machine.runtime.runtime, machine.settings.containerd_socket
    if facts is None:
        return not_applicable(_CONTAINERD, "the runtime could not be asked what it is")
    if not facts.abilities.leaves_refused:
        return not_applicable(_CONTAINERD, "this runtime leaves no remains of refused pods")
    harm = f"{facts.name} {facts.version} leaves remains of refused pods, which may keep it from starting again"
    if path is None:
        return warning(_CONTAINERD, f"{harm}: the setting containerd_socket is empty", f"set it, {_NEWER}")
    return _reachable(machine, path, harm)


def _reachable(machine: Machine, path: Path, harm: str) -> Finding:
    runtime_pid = machine.runtime.pid
    try:
        pid = served_by(path)
    except PermissionError:
        return not_applicable(_CONTAINERD, f"{path}: this user may not connect", "run `nri-rdma doctor` as root")
    except OSError as error:
        found = f"{harm}, and the daemon cannot ask it to remove them: {path}: {error.strerror or error}"
        fix = f"mount hostPath {path.parent} into the daemon's container" if machine.lacks(path.parent) else ""
        return warning(_CONTAINERD, found, f"{fix or 'set containerd_socket (in a container, mount it too)'}, {_NEWER}")
    if 0 not in {pid, runtime_pid} and pid != runtime_pid:
        found = f"{harm}, and {path} belongs to another process (pid {pid}) than the NRI socket (pid {runtime_pid})"
        return warning(_CONTAINERD, found, "set containerd_socket to the socket of the runtime with our NRI socket")
    return ok(_CONTAINERD, f"{path}: the remains that this release leaves of refused pods can be removed")


def cdi_specs(machine: Machine) -> Finding:
    """Check that containerd reads CDI specs. They give containers the devices of ResourceClaims, and the guard: an OCI
    hook that keeps a container from starting without its devices."""
    check, path = "runtime's CDI", machine.settings.containerd_socket
    try:
        is_on = reads_cdi_specs(path)
    except ContainerdError as error:
        return not_applicable(check, f"containerd at {path} does not say whether it reads CDI specs: {error}")
    match is_on:
        case True:
            return ok(check, f"containerd at {path} reads CDI specs")
        case False:
            found = f"containerd at {path} does not read CDI specs (enable_cdi = false): claims bring no devices"
            shared = [pool.name for pool in machine.settings.pools if pool.door is PoolDoor.RESOURCE]
            lacking = f", and containers with shares of {', '.join(shared)} have no guard" if shared else ""
            fix = f"in {machine.etc / 'containerd/config.toml'}, then `systemctl restart containerd`:\n{CDI_TOML}"
            return warning(check, f"{found}{lacking}", fix)
        case None:
            return not_applicable(
                check, f"no containerd says at {path or 'the setting containerd_socket'} whether it reads CDI specs"
            )


def memlock(machine: Machine) -> Finding:
    """Report how much memory the runtime may let a container lock (RLIMIT_MEMLOCK). RDMA programs lock the buffers that
    they register."""
    seen, setting = machine.runtime, machine.settings.memlock
    if seen.refused or not seen.pid:
        fix = "hostPID: true in the daemon's pod" if machine.is_in_pod and not seen.refused else ""
        found = "the runtime's process cannot be seen: the daemon assumes that it may set any RLIMIT_MEMLOCK"
        return not_applicable("memlock", found, fix)
    ceiling = memlock_ceiling(seen.pid, machine.proc)
    if ceiling == UNLIMITED:
        return ok("memlock", "the runtime may give a container any RLIMIT_MEMLOCK")
    fix = "CAP_SYS_RESOURCE for the runtime, or LimitMEMLOCK=infinity in its unit"
    found = f"the runtime (pid {seen.pid}) may not raise RLIMIT_MEMLOCK above {ceiling} bytes"
    if setting.bytes is not None and setting.bytes > ceiling:
        return problem(
            "memlock", f"{found}, and the setting memlock is {setting.bytes}", f"a smaller memlock, or {fix}"
        )
    return warning("memlock", f"{found}: a pod that asks for more is refused", fix)


def _how_to_turn_on(machine: Machine) -> str:
    if (machine.etc / "crio").exists() and not (machine.etc / "containerd").exists():
        return f"in a file of {machine.etc / 'crio/crio.conf.d'}, then `systemctl restart crio`:\n{CRIO_TOML}"
    return (
        "start the runtime, or turn its NRI on (off by default before containerd 2.0 and CRI-O 1.30): in"
        f" {machine.etc / 'containerd/config.toml'}, which may have its first line already, then `systemctl restart"
        f" containerd`:\n{CONTAINERD_TOML}"
    )


def _off_words(machine: Machine) -> str:
    off = list(_turned_off(machine.etc))
    return f"; {'; '.join(off)}" if off else ""


def _turned_off(etc: Path) -> Iterator[str]:
    """Yield a sentence for each runtime setting that turns NRI or its socket off, as far as the configuration can be
    read."""
    containerd = etc / "containerd/config.toml"
    plugin = table_at(read_toml(containerd), "plugins", _CONTAINERD_PLUGIN)
    for key in ("disable", "disable_connections"):
        if plugin.get(key) is True:
            yield f"{containerd} says {key} = true"
    for path in crio_files(etc):
        nri = table_at(read_toml(path), "crio", "nri")
        if nri.get("enable_nri") is False:
            yield f"{path} says enable_nri = false"
        if nri.get("nri_disable_connections") is True:
            yield f"{path} says nri_disable_connections = true"
