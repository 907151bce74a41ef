"""Checks of the running daemon and of its files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: the daemon's JSON document

from nri_rdma import __version__
from nri_rdma.commands.cdi.guarded_spec import lacks_guard
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.daemon.past_file import ASIDE
from nri_rdma.doors.nri.runtime_link import Link, hooks_only
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.host.cdi.folder import read_registry

_DIES_WITH_THE_BOOT = frozenset({"tmpfs", "ramfs"})


def daemon(machine: Machine) -> Finding:
    """Check that a daemon runs and reports no problem."""
    status = machine.daemon
    if isinstance(status, NotReadyError):
        return _unanswered(machine, status)
    found = f"nri-rdma {status['daemon']['version']}, pid {status['daemon']['pid']}"
    ills = list(_ills(status))
    if ills:
        return problem("daemon", f"{found}: {'; '.join(ills)}", "see `nri-rdma status` and the daemon's log")
    if troubles := status.get("troubles"):  # older daemons do not send this field
        words = "; ".join(f"{it['part']}: {it['why']}" for it in troubles)
        return problem("daemon", f"{found}, which runs without: {words}", "do what each says")
    if status["reload_error"]:
        return warning("daemon", f"{found}: {status['reload_error']}", "mend the file, then SIGHUP")
    if status["daemon"]["version"] != __version__:
        return warning("daemon", f"{found}, and this program is {__version__}", "restart the daemon: pods keep theirs")
    link = status["runtime"]["link"]
    return ok("daemon", f"{found}, {hooks_only(status['runtime']['engines']) if link == Link.NONE else link}")


def _unanswered(machine: Machine, error: NotReadyError) -> Finding:
    """Return the finding for a daemon that did not answer on its control socket; `error` says why."""
    match error.code:
        case ErrorCode.PRIVILEGE:
            return not_applicable("daemon", error.what, "run `nri-rdma doctor` as root")
        case ErrorCode.DAEMON_LATE:
            return problem("daemon", f"{error.what}, {error.where}", error.hint)
        case _ if machine.engines:
            found = f"none answers on {machine.settings.control_path}: no container of {' or '.join(machine.engines)}"
            return problem(
                "daemon", f"{found} that asks for a device starts", "systemctl start nri-rdma, or nri-rdma run"
            )
        case _:
            return not_applicable("daemon", f"none answers on {machine.settings.control_path}", "nri-rdma run")


def state(machine: Machine) -> Finding:
    """Check the folder of the journal: it must be writable, and on a file system that a reboot empties, because a
    reboot also returns all devices to the host."""
    folder = machine.settings.state_dir
    there = next(path for path in (folder, *folder.parents) if _exists(path))
    if not os.access(there, os.W_OK | os.X_OK):
        words = f"{folder}: {there} cannot be written"
        if machine.is_root:
            return problem("state", words, "give a --state-dir that is writable")
        return not_applicable("state", f"{words} by this user", "run `nri-rdma doctor` as root")
    aside = sorted((folder / "journal").glob("*.unreadable"))
    if aside:
        return problem(
            "state",
            f"journal records that could not be read were set aside: {', '.join(map(str, aside))}",
            "compare each with `ip link`, move its devices back to the host by hand, then remove the file",
        )
    if aside := sorted(folder.glob(f"past*{ASIDE}")):
        found = f"the record of what earlier daemons did was partly unreadable: {', '.join(map(str, aside))}"
        return warning("state", found, "`nri-rdma trace` lacks that part; look into the file, or remove it")
    mounted = machine.mount_of(there)
    kind = mounted.kind if mounted is not None else ""
    if kind and kind not in _DIES_WITH_THE_BOOT:
        return warning(
            "state",
            f"{folder} is on {kind}: its records would outlive the boot",
            "mount a tmpfs there, or give a --state-dir that is on one",
        )
    return ok("state", f"{folder} is writable{f', on {kind}' if kind else ''}")


def cdi(machine: Machine) -> Finding:
    """Report invalid CDI specs. Also report CDI devices that request something from nri-rdma, but lack the guard, an
    OCI hook that keeps a container from starting without its devices."""
    registry = read_registry(machine.settings.cdi_dirs)
    where = ", ".join(map(str, machine.settings.cdi_dirs))
    if registry.problems:
        first, count = registry.problems[0], len(registry.problems)
        more = f" (and {count - 1} more)" if count > 1 else ""
        return warning("CDI", f"{first.where}: {first.what}{more}", f"{first.hint}; nri-rdma cdi check FILE")
    bare = [it for it in registry.devices.values() if lacks_guard(it, machine.settings.annotation_prefix)]
    if bare:
        more = f" (and {len(bare) - 1} more)" if len(bare) > 1 else ""
        what = "has our annotation, but no guard: while no daemon runs, containers start without what it adds"
        fix = f"on a node of Kubernetes: nri-rdma cdi guard {bare[0].file} (docs/cdi.md)"
        return warning("CDI", f"{bare[0].name}{more} {what}", fix)
    return ok("CDI", f"{len(registry.devices)} devices in {where}")


def links(machine: Machine) -> Finding:
    """Report other programs that may change the configuration of netdevs that return from pods."""
    managers = [
        name
        for name, place in (("networkd", "systemd/netif"), ("NetworkManager", "NetworkManager"))
        if (machine.run / place).is_dir()
    ]
    if (machine.run / "udev/control").exists():
        by = _listed(["udev", *managers])
        return ok(
            "links",
            f"{by} may change netdevs that return from pods; after 2 s the daemon restores what"
            f" {'they have' if managers else 'it has'} changed",
        )
    if managers:
        run, change = ("runs", "it changes") if len(managers) == 1 else ("run", "they change")
        return warning(
            "links",
            f"{_listed(managers)} {run} and may change netdevs that return from pods; the daemon does not restore what"
            f" {change}, because {machine.run / 'udev/control'} is missing",
            "start systemd-udevd; if the daemon runs in a container, mount the host's /run/udev there, read-only",
        )
    if machine.lacks(machine.run / "udev"):
        return warning(
            "links",
            f"the host's {machine.run / 'udev'} is not mounted into this container: what udev, networkd or"
            " NetworkManager change on netdevs that return from pods is not restored",
            f"mount hostPath {machine.run / 'udev'} into the daemon's container, readOnly",
        )
    return ok("links", "no other program configures netdevs that return from pods")


def _listed(names: list[str]) -> str:
    """Join names as in a sentence: "a, b and c"."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def _ills(status: dict[str, Any]) -> Iterator[str]:
    runtime = status["runtime"]
    if runtime["link"] not in {Link.SYNCHRONIZED, Link.NONE}:
        yield f"{runtime['link']} from the runtime" + (f" ({runtime['error']})" if runtime["error"] else "")
    for sandbox in status["sandboxes"]:
        if sandbox["undo_error"]:
            yield f"devices of {sandbox['pod']} are not back on the host: {sandbox['undo_error']}"
    if status["unserved"]:
        pods = ", ".join(item["pod"] for item in status["unserved"])
        yield f"pods run without what they ask for: {pods}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False
