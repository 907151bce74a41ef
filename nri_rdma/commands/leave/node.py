"""Removes what nri-rdma has written on a node. Refused as long as a sandbox has devices, or a daemon runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from nri_rdma.attach.journal import Journal
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.locks import Sole
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.errors import ErrorCode, NriRdmaError, StateError
from nri_rdma.host.cdi.folder import SUFFIXES

DAEMON_ENDS_S = 20.0
"""How long the daemon that was here before may take to end."""
OWN_KINDS = (f"{DRIVER}-claim", f"shares.{DRIVER}-pool")
"""What the names of CDI specs that daemons write begin with. Those of `nri-rdma cdi generate` are the user's."""
HOOK = Path("bin/nri-rdma-hook")
"""A folder with this file is a copy of the image's."""


def leave_node(settings: Settings, host_dir: Path | None) -> Iterator[str]:
    """Remove everything, and yield what was removed. Raises NriRdmaError, StateError or OSError."""
    if host_dir is not None and host_dir.exists() and any(host_dir.iterdir()) and not (host_dir / HOOK).exists():
        what = "the folder is not the one that the chart has made: it has no hook"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=str(host_dir), hint="name the chart's hostDir")
    sole = Sole(settings.state_dir, settings.nri_socket, by=time.monotonic() + DAEMON_ENDS_S)
    try:
        _refuse_held(settings.state_dir)
        yield from _remove_specs(settings.cdi_dirs[-1])
        for folder in (settings.kubelet_plugins_dir / DRIVER, settings.state_dir, *([host_dir] if host_dir else [])):
            yield from _empty(folder)
        if (settings.kubelet_plugins_dir / DRIVER).exists():
            (settings.kubelet_plugins_dir / DRIVER).rmdir()
    finally:
        sole.release()


def _refuse_held(state_dir: Path) -> None:
    records, errors = Journal(state_dir / "journal").load()
    if errors:
        raise errors[0]
    if records:
        pods = ", ".join(sorted({f"{it.pod.namespace}/{it.pod.name}" for it in records}))
        hint = "delete these pods while a daemon runs, so that it restores their devices, and try again"
        raise StateError(ErrorCode.INSTALL, f"pods have devices: {pods}", where=str(state_dir), hint=hint)


def _remove_specs(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*")):
        if path.name.startswith(OWN_KINDS) and path.suffix in SUFFIXES:
            path.unlink()
            yield str(path)


def _empty(folder: Path) -> Iterator[str]:
    """Remove what is in a folder; in a container the folder itself is a mount."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if found:
        yield f"{folder}: {len(found)} entries"
