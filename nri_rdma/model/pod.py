"""The pod sandbox a request belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod sandbox as the runtime describes it.

    `netns_path` is empty for a pod on the host's network (containerd) or when the runtime does not say.
    `pid` is the process of the sandbox, 0 when the runtime does not say.
    `sandbox_id` keys everything that is attached; `uid` may have two sandboxes for a while.
    `is_listed` is False for a container of podman or Docker, which stands for itself: no runtime lists it among its
    pods, and it ends with its process `pid`. `cgroups_path` is that of its OCI spec; "" where it has none, and for a
    pod.
    """

    sandbox_id: str
    uid: str
    name: str
    namespace: str
    netns_path: str
    pid: int = 0
    is_listed: bool = True
    cgroups_path: str = ""

    def is_same_pod(self, other: Pod) -> bool:
        """Return whether both are sandboxes of one pod. The uid alone does not suffice: a client may leave it out."""
        return (self.uid, self.namespace, self.name) == (other.uid, other.namespace, other.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
