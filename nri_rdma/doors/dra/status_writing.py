"""Writes a claim's `status.devices` at the API server, where it differs.

A merge patch changes nothing else, and says which version it is about. Where the claim's parameters have bytes that
JSON would change, the API server takes that for a change of the allocation, and the whole claim is written in protobuf.
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
from nri_rdma.text.api_objects import reading, word
from nri_rdma.text.claims import claim_path

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""How often a claim is read and written at once when others write it at the same time."""
GONE, CONFLICT, INVALID = 404, 409, 422
DRIVER_RIGHT = "resourceclaims/driver"
"""The resource of RBAC that Kubernetes 1.36 and later ask about; they answer 422 where the right is missing."""


def write_status(api: ApiServer, name: ClaimName, state: ClaimState, *, counts_bytes: bool) -> bool:
    """Write the state of a claim where it differs, and return whether its bytes count; `counts_bytes` is what is known
    of that. Raise ApiServerError, with 404 also for another claim of the name."""
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
    """Return whether that right is missing."""
    return error.status == INVALID and DRIVER_RIGHT in str(error)


def _patched(api: ApiServer, path: str, version: str, devices: Sequence[StatusEntry]) -> bool:
    """Return whether the API server has taken a patch; False where it may take the same in protobuf."""
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
    return ApiServerError("the claim is another one by now", where=path, hint="nothing", status=GONE)
