"""The annotation of a container that names the shares that the kubelet allocated to it. A share is one unit of a pool's
extended resource.

The device plugin gives the annotation to the kubelet, which passes it to the runtime with the container:
``shares.rdma.noderesource.dev/rdma_hca_a: rdma/hca_a=hcas-07,hcas-12``. CRI-O adds the pod's annotations, which its
author writes, to those of each container; therefore a pod with such a key is refused (`forged`).

A second annotation says that the container got the guard together with the shares. The guard is an OCI hook that keeps
a container from starting without its devices. A container without this annotation was created by a version of nri-rdma
without the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

GUARD_HOOK = "nri-rdma-hook"
"""The file name of the guard, an OCI hook that keeps a container from starting without its devices. It may be in any
folder."""
GUARD_OFF = "off"
"""The value of the label `guard_label` with which a pod or a namespace declines the guard, an OCI hook that keeps a
container from starting without its devices."""
GUARD_MODULE = "nri_rdma_hook.py"
"""The Python file beside the guard's program, with all of its code except the start. The guard is an OCI hook that
keeps a container from starting without its devices."""
KEY_PREFIX = "shares.rdma.noderesource.dev/"
"""The prefix of the annotations that name shares (units of an extended resource). The resource's name follows the
prefix, because one container may have shares of several pools."""
GUARDED_PREFIX = f"guard.{KEY_PREFIX}"
"""The prefix of the annotations which say that a container got the guard, an OCI hook that keeps it from starting
without its devices. The resource's name follows the prefix; the value is the pool's name."""


def guard_label(prefix: str) -> str:
    """Return the key of the label with which a pod or a namespace declines the guard resource (value `off`). The
    resource gives a container the guard, an OCI hook that keeps it from starting without its devices. `prefix` is the
    prefix of nri-rdma's annotations."""
    return f"{prefix}/guard"


def share_annotation(resource: str, shares: Iterable[str]) -> tuple[str, str]:
    """Return the key and the value of the container annotation that names the allocated shares (units) of an extended
    resource."""
    return f"{KEY_PREFIX}{resource.replace('/', '_')}", f"{resource}={','.join(sorted(shares))}"


def shares_in(annotations: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the shares that a container's annotations name, as pairs of the resource's name and the share's id. A
    share is one unit of an extended resource, allocated by the kubelet."""
    told = (text.partition("=") for key, text in annotations.items() if key.startswith(KEY_PREFIX))
    return frozenset((resource, share) for resource, _, shares in told for share in shares.split(","))


def guarded_annotation(resource: str, pool: str) -> tuple[str, str]:
    """Return the key and the value of the annotation which says that a container got the guard together with shares of
    this resource and pool. The guard is an OCI hook that keeps a container from starting without its devices."""
    return f"{GUARDED_PREFIX}{resource.replace('/', '_')}", pool


def given_guards(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the pools for which a container with these annotations got the guard, an OCI hook that keeps
    a container from starting without its devices."""
    return frozenset(pool for key, pool in annotations.items() if key.startswith(GUARDED_PREFIX))


def forged(pod_annotations: Mapping[str, str]) -> str:
    """Return the first annotation of a pod whose key only the device plugin may use: it has the prefix of a share or
    guard annotation. Returns "" if the pod has no such annotation."""
    return next((key for key in pod_annotations if key.startswith((KEY_PREFIX, GUARDED_PREFIX))), "")
