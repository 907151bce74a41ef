"""The pod sandbox that a request belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod sandbox as the runtime describes it, or a single container of podman or Docker.

    `netns_path` is empty for a pod on the host's network (containerd), or if the runtime does not report it. `pid` is
    the process of the sandbox, 0 if the runtime does not report it. Attachments are keyed by `sandbox_id`, because a
    pod's `uid` may have two sandboxes for a while. `is_listed` is False for a container of podman or Docker: no runtime
    lists it among its pods, and it ends when the process `pid` ends. `cgroups_path` is that of such a container's OCI
    spec; "" if it has none, and for a pod.
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
        """Return whether both are sandboxes of one pod. Names are compared, too, because some clients leave the uid
        empty."""
        return (self.uid, self.namespace, self.name) == (other.uid, other.namespace, other.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
