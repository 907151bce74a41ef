"""The runtime handlers of the runtime that runs, by its own answer: the configuration files may have been changed since
its start, and may lie elsewhere."""

from __future__ import annotations

import socket as socketlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias  # Any: the runtime's JSON document

from nri_rdma.host.containerd.client import Containerd

CRIO_SOCKET = Path("/run/crio/crio.sock")
ASK_S = 5.0
"""Time limit of the question; after it the question fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeHandler:
    """A runtime handler of containerd: its base_runtime_spec, "" without one, and its pod_annotations. `is_default`:
    it is that of pods that name none."""

    name: str
    base_spec: str = ""
    annotations: tuple[str, ...] = ()
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCrio:
    """A CRI-O: the folders that it reads hooks from, for all of its handlers."""

    hook_folders: tuple[Path, ...]


Running: TypeAlias = tuple[RuntimeHandler, ...] | RunningCrio


def running_handlers(socket: Path | None) -> Running | None:
    """Return what the runtime at this socket of CRI runs with; None where nobody listens there, or does not tell.
    Raises ContainerdError where somebody listens and does not answer. Blocks."""
    if socket is None or not listens(socket):
        return None
    with Containerd(socket, call_s=ASK_S) as runtime:
        return read_handlers(runtime.configuration())


def read_handlers(told: Any) -> Running | None:
    """Return what the configuration says that CRI's Status tells."""
    crio = _table(told, "crio").get("HooksDir")
    if isinstance(crio, list):
        return RunningCrio(hook_folders=tuple(Path(it) for it in crio if isinstance(it, str)))
    handlers, default = _table(told, "containerd", "runtimes"), _table(told, "containerd").get("defaultRuntimeName")
    found = {name: it for name, it in handlers.items() if isinstance(it, dict)}
    return tuple(_handler(name, it, is_default=name == default) for name, it in sorted(found.items())) or None


def listens(path: Path) -> bool:
    """Return whether somebody listens on a socket, and we may connect."""
    with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _handler(name: str, told: Mapping[str, Any], *, is_default: bool) -> RuntimeHandler:
    base, annotations = told.get("baseRuntimeSpec"), told.get("PodAnnotations")
    return RuntimeHandler(
        name=name,
        base_spec=base if isinstance(base, str) else "",
        annotations=tuple(it for it in annotations if isinstance(it, str)) if isinstance(annotations, list) else (),
        is_default=is_default,
    )


def _table(document: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}
