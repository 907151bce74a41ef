"""The annotation of a container that says which shares the kubelet allocated to it.

The device plugin gives the annotation to the kubelet, which passes it to the runtime with the container:
``shares.rdma.noderesource.dev/rdma_hca_a: rdma/hca_a=hcas-07,hcas-12``. CRI-O adds the pod's annotations, which its
author writes, to those of each container; therefore a pod with such a key is refused (`forged`).

A second annotation says that the guard (a hook that refuses incomplete containers) was given together with the shares.
A container without it was created by a version without the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GUARD_HOOK = "nri-rdma-hook"
"""The file name of the guard's program, in whichever folder it is."""
GUARD_OFF = "off"
"""The value of the label `guard_label` with which a pod or a namespace opts out of the guard resource."""
GUARD_MODULE = "nri_rdma_hook.py"
"""The file beside the guard's program that contains all of its code except the start."""
KEY_PREFIX = "shares.rdma.noderesource.dev/"
"""The prefix of the share annotations; the resource's name follows, because one container may have shares of several
pools."""
GUARDED_PREFIX = f"guard.{KEY_PREFIX}"
"""The prefix of the guard annotations; the resource's name follows. The value is the pool's name."""


def guard_label(prefix: str) -> str:
    """Return the label of pods and namespaces that controls the guard resource. `prefix` is the prefix of our
    annotations."""
    return f"{prefix}/guard"


def share_annotation(resource: str, shares: Iterable[str]) -> tuple[str, str]:
    """Return the key and the value of the annotation for shares of a resource."""
    return f"{KEY_PREFIX}{resource.replace('/', '_')}", f"{resource}={','.join(sorted(shares))}"


def shares_in(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the shares in a container's annotations, as pairs of resource and share."""
    told = (text.partition("=") for key, text in annotations.items() if key.startswith(KEY_PREFIX))
    return frozenset((resource, share) for resource, _, shares in told for share in shares.split(","))


def guarded_annotation(resource: str, pool: str) -> tuple[str, str]:
    """Return the key and the value of the annotation which says that a pool's guard was given with shares of its
    resource."""
    return f"{GUARDED_PREFIX}{resource.replace('/', '_')}", pool


def given_guards(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the pools whose guards were given to the container with these annotations."""
    return frozenset(pool for key, pool in annotations.items() if key.startswith(GUARDED_PREFIX))


def forged(pod_annotations: Mapping[str, str]) -> str:
    """Return the first of the pod's own annotations that has the prefix of a share or guard annotation; "" if there is
    none."""
    return next((key for key in pod_annotations if key.startswith((KEY_PREFIX, GUARDED_PREFIX))), "")
