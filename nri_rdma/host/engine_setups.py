"""Find which container engines (podman, Docker) use nri-rdma's OCI hooks on this host, by the files that the
installation created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nri_rdma.config.settings import Settings
from nri_rdma.model.pool import PoolDoor

OCI_HOOK: Final = Path("/usr/local/lib/nri-rdma/nri-rdma-oci-hook")
PODMAN_DROP_IN: Final = Path("/etc/containers/containers.conf.d/90-nri-rdma.conf")
DOCKER_SHIM: Final = Path("/usr/local/bin/containerd-shim-nri-rdma-v1")
BY_CDI: Final = "podman or Docker"
"""The name that stands for the engine if only the hook program is installed. Any engine that reads CDI specs may then
run the hook."""


def engines_without_runtime(settings: Settings, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the installed engines (podman, Docker) if this host is not a node of Kubernetes, and () if it may be one.
    On a node of Kubernetes, callers report a container runtime without NRI as an error.

    A host may be a node if it has an NRI socket or a kubelet, or if a pool is configured for Kubernetes.
    """
    by_kubernetes = any(pool.door is not PoolDoor.ANNOTATIONS for pool in settings.pools)
    if by_kubernetes or _may_be_there(settings.nri_socket) or _may_be_there(settings.kubelet_socket):
        return ()
    return tuple(_engines(root))


def _may_be_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # no permission to look: assume that it exists, because overlooking a runtime would be worse
        return True
    return True


def _engines(root: Path) -> Iterator[str]:
    if not (root / OCI_HOOK.relative_to("/")).exists():
        return
    found = (("podman", PODMAN_DROP_IN), ("Docker", DOCKER_SHIM))
    named = [name for name, path in found if (root / path.relative_to("/")).exists()]
    yield from named or (BY_CDI,)
