"""The container engines that ask by our hooks on this host, known by the files that set them up."""

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
"""The engine where only the hook is there: CDI devices bring it to whoever reads CDI specs."""


def engines_without_runtime(settings: Settings, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the engines that are set up, if nobody else can ask here: there is no NRI socket, no kubelet, and no pool
    that Kubernetes asks for. Else nothing: then a runtime without NRI is an error."""
    by_kubernetes = any(pool.door is not PoolDoor.ANNOTATIONS for pool in settings.pools)
    if by_kubernetes or _may_be_there(settings.nri_socket) or _may_be_there(settings.kubelet_socket):
        return ()
    return tuple(_engines(root))


def _may_be_there(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # this user may not look: a runtime that is missed is worse than one that is expected in vain
        return True
    return True


def _engines(root: Path) -> Iterator[str]:
    if not (root / OCI_HOOK.relative_to("/")).exists():
        return
    found = (("podman", PODMAN_DROP_IN), ("Docker", DOCKER_SHIM))
    named = [name for name, path in found if (root / path.relative_to("/")).exists()]
    yield from named or (BY_CDI,)
