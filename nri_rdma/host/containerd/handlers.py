"""The runtime handlers of a running container runtime, by its own answer. Its configuration files may have changed
since it started, and may be in another place."""

from __future__ import annotations

import socket as socketlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias  # Any: the runtime's JSON document

from nri_rdma.host.containerd.containerd_api import Containerd

CRIO_SOCKET = Path("/run/crio/crio.sock")
ASK_S = 5.0
"""Time limit in seconds of a query to the container runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeHandler:
    """A runtime handler of containerd. `base_spec` is its setting base_runtime_spec ("" if not set), and `annotations`
    its setting pod_annotations.

    `is_default`: pods that name no handler use this one.
    """

    name: str
    base_spec: str = ""
    annotations: tuple[str, ...] = ()
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCrio:
    """A running CRI-O, with the folders from which all of its handlers read hooks."""

    hook_folders: tuple[Path, ...]


Running: TypeAlias = tuple[RuntimeHandler, ...] | RunningCrio


def running_handlers(socket: Path | None) -> Running | None:
    """Return the handlers of the runtime at this CRI socket; None if nothing listens there or the answer does not say
    it.

    Raises ContainerdError if a process listens there but does not answer. Blocks.
    """
    if socket is None or not listens(socket):
        return None
    with Containerd(socket, call_s=ASK_S) as runtime:
        return read_handlers(runtime.configuration())


def read_handlers(told: Any) -> Running | None:
    """Parse the handlers from the configuration that a runtime returns in CRI's Status; None if it has none. `told` is
    the parsed JSON of the configuration."""
    crio = _table(told, "crio").get("HooksDir")
    if isinstance(crio, list):
        return RunningCrio(hook_folders=tuple(Path(it) for it in crio if isinstance(it, str)))
    handlers, default = _table(told, "containerd", "runtimes"), _table(told, "containerd").get("defaultRuntimeName")
    found = {name: it for name, it in handlers.items() if isinstance(it, dict)}
    return tuple(_handler(name, it, is_default=name == default) for name, it in sorted(found.items())) or None


def listens(path: Path) -> bool:
    """Return whether a process listens on a socket and accepts our connection."""
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
