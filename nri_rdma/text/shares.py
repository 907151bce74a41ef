"""The annotation by which a container tells which shares the kubelet allocated to it.

The device plugin gives it to the kubelet, which gives it to the runtime with the container:
``shares.rdma.noderesource.dev/rdma_hca_a: rdma/hca_a=hcas-07,hcas-12``. CRI-O mixes the pod's annotations, which its
author writes, into those of each container: a pod with such a key is refused (`forged`).

A second annotation says that the guard was given with the shares. A container without it is older than the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GUARD_HOOK = "nri-rdma-hook"
"""The name of the guard's program, wherever it lies."""
GUARD_OFF = "off"
"""The value of `guard_label` by which a pod, or a namespace, goes without the guard resource."""
GUARD_MODULE = "nri_rdma_hook.py"
"""The file beside it that has all of it but the start."""
KEY_PREFIX = "shares.rdma.noderesource.dev/"
"""With the resource's name after it: one container may have shares of several pools."""
GUARDED_PREFIX = f"guard.{KEY_PREFIX}"
"""With the resource's name after it; the value is the pool."""


def guard_label(prefix: str) -> str:
    """Return the label of pods and namespaces about the guard resource; `prefix` is that of our annotations."""
    return f"{prefix}/guard"


def share_annotation(resource: str, shares: Iterable[str]) -> tuple[str, str]:
    """Return key and value for shares of a resource."""
    return f"{KEY_PREFIX}{resource.replace('/', '_')}", f"{resource}={','.join(sorted(shares))}"


def shares_in(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the shares that a container's annotations tell of, each with its resource."""
    told = (text.partition("=") for key, text in annotations.items() if key.startswith(KEY_PREFIX))
    return frozenset((resource, share) for resource, _, shares in told for share in shares.split(","))


def guarded_annotation(resource: str, pool: str) -> tuple[str, str]:
    """Return key and value that say that the guard of a pool is given with the shares of its resource."""
    return f"{GUARDED_PREFIX}{resource.replace('/', '_')}", pool


def given_guards(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the pools whose guard was given to the container with these annotations."""
    return frozenset(pool for key, pool in annotations.items() if key.startswith(GUARDED_PREFIX))


def forged(pod_annotations: Mapping[str, str]) -> str:
    """Return a key of the pod's own annotations that looks like one of these, or ""."""
    return next((key for key in pod_annotations if key.startswith((KEY_PREFIX, GUARDED_PREFIX))), "")
