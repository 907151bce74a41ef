"""Writes a claim's `status.devices` to the API server, if it differs from the state of the devices.

A merge patch changes only this field, and applies only to the resourceVersion that it names. If JSON would change bytes
of the claim's parameters, the API server takes the patch for a change of the allocation and rejects it. The whole claim
is then written in protobuf.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from nri_rdma.doors.dra.claim_bytes import version_of, with_devices
from nri_rdma.doors.dra.statuses import ClaimState, StatusEntry, changed_devices
from nri_rdma.errors import ApiServerError
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.claim import ClaimName
from nri_rdma.text.allocated_claim import claim_path
from nri_rdma.text.api_objects import reading, word

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Maximum number of attempts to write a claim that another program changes meanwhile. There is no pause between
attempts."""
GONE, CONFLICT, INVALID = 404, 409, 422
DRIVER_RIGHT = "resourceclaims/driver"
"""The RBAC resource for which Kubernetes 1.36 and later requires a permission. The API server answers 422 if it is
missing."""


def write_status(api: ApiServer, name: ClaimName, state: ClaimState, *, counts_bytes: bool) -> bool:
    """Write the state of a claim if it differs from its status, and return whether this claim has to be written in
    protobuf.

    `counts_bytes`: the caller already knows that it has to. Raises ApiServerError if the write fails. Its status is 404
    if the claim was deleted, also if another claim has the name now.
    """
    path = claim_path(name)
    for attempt in range(1, ATTEMPTS + 1):
        claim = api.get(path)
        with reading("ResourceClaim", path):
            if claim["metadata"]["uid"] != name.uid:
                raise _another(path)
            devices = changed_devices(claim, state, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            version = word(claim["metadata"]["resourceVersion"])
        if devices is None:
            return counts_bytes
        try:
            counts_bytes = counts_bytes or not _patched(api, path, version, devices)
            if counts_bytes:
                _replace(api, path, version, devices)
        except ApiServerError as error:
            if error.status != CONFLICT or attempt == ATTEMPTS:
                raise
        else:
            log.debug("claim status written", extra={"claim": str(name)})
            break
    return counts_bytes


def lacks_driver_right(error: ApiServerError) -> bool:
    """Return whether the API server refused the write because the permission DRIVER_RIGHT is missing."""
    return error.status == INVALID and DRIVER_RIGHT in str(error)


def _patched(api: ApiServer, path: str, version: str, devices: Sequence[StatusEntry]) -> bool:
    """Send a merge patch, and return whether the API server accepted it. If False, the caller should write the whole
    claim in protobuf.

    False means that the API server found the patch invalid, as it does if JSON changes bytes of the claim's parameters.
    Raises ApiServerError for any other error.
    """
    try:
        api.merge(f"{path}/status", {"metadata": {"resourceVersion": version}, "status": {"devices": devices}})
    except ApiServerError as error:
        if error.status != INVALID or lacks_driver_right(error):
            raise
        return False
    return True


def _replace(api: ApiServer, path: str, version: str, devices: Sequence[StatusEntry]) -> None:
    data = api.get_bytes(path)
    if version_of(data) != version:
        raise ApiServerError("the claim has changed", where=path, hint="nothing", status=CONFLICT)
    api.replace_bytes(f"{path}/status", with_devices(data, devices))


def _another(path: str) -> ApiServerError:
    return ApiServerError("the claim was deleted and created again", where=path, hint="nothing", status=GONE)
