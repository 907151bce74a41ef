"""Removes all files that nri-rdma has written on a node. Refuses while a sandbox has devices or a daemon runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from nri_rdma.attach.journal import Journal
from nri_rdma.commands.install.host import HostFolder
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.locks import Sole, runtime_lock
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.errors import ErrorCode, StateError
from nri_rdma.host.cdi.folder import SUFFIXES

DAEMON_ENDS_S = 20.0
"""How many seconds to wait for the end of a daemon on this node."""
OWN_KINDS = (f"{DRIVER}-claim", f"shares.{DRIVER}-pool")
"""The beginnings of the file names of the CDI specs that daemons write. The files of `nri-rdma cdi generate` belong to
the user and have other names."""
BEFORE_JOURNAL = {"lock", "nri-rdma.log"}
"""What a daemon makes in its state directory before its journal."""


def leave_node(settings: Settings, host_dir: Path | None) -> Iterator[str]:
    """Remove our files and yield a line for each thing removed. `host_dir` is the chart's folder, whose programs are
    removed, too.

    Raises StateError if a pod has devices or the journal cannot be read, NriRdmaError if a daemon runs, and OSError if
    a file cannot be removed.
    """
    sole = Sole(settings.state_dir, settings.nri_socket, by=time.monotonic() + DAEMON_ENDS_S)
    try:
        _refuse_held(settings.state_dir)
        yield from _remove_specs(settings.cdi_dirs[-1])
        for folder in (settings.kubelet_plugins_dir / DRIVER, settings.state_dir):
            yield from _empty(folder)
        for path in _sockets(settings):  # left by a daemon that was killed
            path.unlink()
            yield str(path)
        if (settings.kubelet_plugins_dir / DRIVER).exists():
            (settings.kubelet_plugins_dir / DRIVER).rmdir()
        if host_dir is not None and HostFolder(here=host_dir, path=str(host_dir)).remove():
            yield f"{host_dir}: the programs"
        lock = runtime_lock(settings.nri_socket)
        lock.unlink(missing_ok=True)
        yield str(lock)
    finally:
        sole.release()


def _refuse_held(state_dir: Path) -> None:
    others = sorted({it.name for it in state_dir.iterdir()} - BEFORE_JOURNAL)
    if others and "journal" not in others:
        what = f"this is no state directory of nri-rdma: it has no journal, but {others[0]}"
        hint = "give the --state-dir of the daemon (its `state_dir`)"
        raise StateError(ErrorCode.INSTALL, what, where=str(state_dir), hint=hint)
    records, _errors = Journal(state_dir / "journal").load()
    if unread := sorted((state_dir / "journal").glob("*.unreadable")):  # set aside just now or by an earlier start
        what = "the journal has a record that cannot be read: a pod may have devices"
        hint = "follow STATE-UNREADABLE in docs/operations.md, and try again"
        raise StateError(ErrorCode.STATE_UNREADABLE, what, where=str(unread[0]), hint=hint)
    if records:
        pods = ", ".join(sorted({f"{it.pod.namespace}/{it.pod.name}" for it in records}))
        hint = "delete these pods while a daemon runs, so that it restores their devices, and try again"
        raise StateError(ErrorCode.INSTALL, f"pods have devices: {pods}", where=str(state_dir), hint=hint)


def _remove_specs(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*")):
        if path.name.startswith(OWN_KINDS) and path.suffix in SUFFIXES:
            path.unlink()
            yield str(path)


def _sockets(settings: Settings) -> Iterator[Path]:
    yield from settings.device_plugin_dir.glob("nri-rdma_*.sock")
    yield from settings.kubelet_plugins_dir.with_name("plugins_registry").glob(f"{DRIVER}*-reg.sock")


def _empty(folder: Path) -> Iterator[str]:
    """Remove everything in the folder, but not the folder itself, which is a mount point in a container. The journal is
    last: by it a state directory is known when this is called again."""
    found = sorted(folder.iterdir(), key=lambda it: (it.name == "journal", it.name)) if folder.is_dir() else []
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if found:
        yield f"{folder}: {len(found)} entries"
