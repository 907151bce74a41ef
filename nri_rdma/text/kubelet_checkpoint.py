"""Reads the kubelet's checkpoint of claims (`dra_manager_state`): which pods have which claims of a driver. Pure.

The kubelet writes the file before it asks the driver to prepare a claim. It writes it again before the sandbox of every
further pod of the claim, and then does not call the driver. Kubernetes 1.34 to 1.37 use the same form.

The file's checksum is not verified. It is not needed against half-written files, because the kubelet replaces the whole
file at once. A kubelet that computed the checksum in a new way would make every file look wrong, and nri-rdma would
then refuse every pod with a claim.
"""

from __future__ import annotations

import json

from nri_rdma.errors import ErrorCode, KubeletError

FILE = "dra_manager_state"
"""The name of the file in the kubelet's root folder."""


def may_have(checkpoint: bytes, pod_uid: str, driver: str) -> bool:
    """Return whether the pod may have claims of the driver; False is certain. Searches the file for the two names
    without parsing it, which is fast: most pods have no claims."""
    return bool(pod_uid) and pod_uid.encode() in checkpoint and driver.encode() in checkpoint


def claimed(checkpoint: bytes, pod_uid: str, driver: str) -> tuple[str, ...]:
    """Return the names of the CDI devices that belong to the pod's claims of the driver, each once.

    Raises KubeletError if the pod may have such a claim and the file's form is unknown, or if a claim has no CDI
    device.
    """
    if not may_have(checkpoint, pod_uid, driver):
        return ()
    try:
        claims = json.loads(json.loads(checkpoint)["Data"])["ClaimInfoStateList"] or ()
        drivers = [dict(it["DriverState"] or {}) for it in claims if pod_uid in dict(it["PodUIDs"] or {})]
        ours = [it[driver]["Devices"] or () for it in drivers if driver in it]
        names = [[name for device in devices for name in device["CDIDeviceIDs"] or ()] for devices in ours]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"the kubelet's {FILE} has a form that is not known: {type(error).__name__} {error}"
        raise _unusable(what, pod_uid, "see docs/operations.md: the kubelet may be newer than this nri-rdma") from error
    if not all(names):
        raise _unusable(f"a claim of this pod has no CDI device in {FILE}", pod_uid, "nothing to do: it is tried again")
    return tuple(dict.fromkeys(name for of_claim in names for name in of_claim))


def _unusable(what: str, pod_uid: str, hint: str) -> KubeletError:
    return KubeletError(ErrorCode.KUBELET_STATE, what, where=f"pod uid {pod_uid}", hint=hint)
