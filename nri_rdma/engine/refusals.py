"""The refusals of a pod or container that may not run yet, or not any more. Their texts begin so that the kubelet
retries after about a second, not after ten or more, where a retry helps."""

from __future__ import annotations

from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.pod import Pod

_ASKS_AGAIN = "nothing to do: the kubelet asks again"
_NEW_SANDBOX = "delete the pod so that it gets a new sandbox"


def not_ready(pod: Pod, why: str, last_error: str = "") -> NotReadyError:
    """Return the error for a container whose pod's attach is not done, or not verified."""
    what = f"network is not ready: {why}"
    return NotReadyError(ErrorCode.NOT_READY, what, where=str(pod), hint=_ASKS_AGAIN, detail=last_error)


def being_attached(pod: Pod, container: str) -> NotReadyError:
    """Return the error for a container as long as what its CDI devices ask for is not attached."""
    return not_ready(pod, f"what the CDI devices of container {container} ask for is being attached")


def not_decided(pod_name: str) -> NotReadyError:
    """Return the error for a container whose pod started unnoticed and is being decided about."""
    what = "network is not ready: this pod started while nri-rdma was away and is looked at now"
    return NotReadyError(ErrorCode.NOT_READY, what, where=pod_name, hint=_ASKS_AGAIN)


def not_attached(pod_name: str) -> NotReadyError:
    """Return the error for a container whose pod asks for devices and has none."""
    what = "this pod asks for RDMA devices and none are attached to its sandbox"
    return NotReadyError(ErrorCode.NOT_ATTACHED, what, where=pod_name, hint=_NEW_SANDBOX)


def failed_late(pod: Pod, why: str) -> NotReadyError:
    """Return the error for a container of a sandbox whose attach failed after RunPodSandbox was answered."""
    what = "the attach failed after the sandbox had started, and was undone"
    return NotReadyError(ErrorCode.ATTACH_FAILED, what, where=str(pod), hint=_NEW_SANDBOX, detail=why)


def claim_failed(pod: Pod, container: str, why: str, *, is_over: bool) -> NotReadyError:
    """Return the error for a container whose claim could not be attached; `is_over`: it is not tried again."""
    return NotReadyError(
        ErrorCode.ATTACH_FAILED,
        "the devices of this container's claim could not be attached, and what was done was undone",
        where=f"{pod}, container {container}",
        hint=_NEW_SANDBOX if is_over else "nothing to do: it is tried again",
        detail=why,
    )


def returning(pod: Pod) -> NotReadyError:
    """Return the error for a container of a sandbox that is ending."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "the devices of this sandbox go back to the host",
        where=str(pod),
        hint="the pod needs a new sandbox; delete the pod if the kubelet does not make one",
    )
