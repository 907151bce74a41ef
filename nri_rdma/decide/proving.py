"""Finds through which devices of a container a proof must move data before the container starts. A proof is a test that
RDMA works. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nri_rdma.decide.inject import AttachedRequest, usable_ports
from nri_rdma.decide.policy import Policy, is_proven
from nri_rdma.model.device import LinkLayer
from nri_rdma.model.proof import DeviceTask
from nri_rdma.model.request import DeviceRequest, Use

_NCCL, _UCX = "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"
INDEX_VARIABLES = (_NCCL, _UCX)
"""The variables that force an entry of the GID tables on NCCL and UCX; the first one that is set counts. NCCL ignores
its own variable on InfiniBand."""
_MOST_DIGITS = 9


def asks_proof(policy: Policy, requests: Iterable[DeviceRequest]) -> DeviceRequest | None:
    """Return the first of a pod's own requests whose devices must pass a proof (a test that RDMA works) before a
    container starts; None if there is none. Requests for unknown pools are skipped, because another check refuses
    them."""
    for request in requests:
        pool = policy.pools.get(request.pool)
        if not request.shares and pool is not None and is_proven(pool, request):
            return request
    return None


def proven_of(attached: Iterable[AttachedRequest], container: str) -> tuple[AttachedRequest, ...]:
    """Return the attached requests of a container whose devices must pass a proof (a test that RDMA works) before it
    starts."""
    return tuple(
        [item for item in attached if item.admitted.request.prove and item.admitted.request.scope.covers(container)]
    )


def port_tasks(proven: Iterable[AttachedRequest], indexes: Mapping[str, str]) -> tuple[DeviceTask, ...]:
    """Return a test for each port that the container's libraries are told to use. `indexes` are the container's values
    of the variables that force a GID index on NCCL and UCX (INDEX_VARIABLES). If the container does not set such a
    variable, the pool's value counts."""
    return tuple({(it.device, it.port): it for item in proven for it in _tasks(item, indexes)}.values())


def _tasks(item: AttachedRequest, indexes: Mapping[str, str]) -> Iterator[DeviceTask]:
    variables = {**dict(item.admitted.variables), **indexes}
    is_computing = item.admitted.request.use is not Use.STORAGE
    version = item.admitted.request.roce_version or 2
    for attached in item.devices:
        device = attached.device
        infiniband = {port.number for port in device.ports if port.link_layer is LinkLayer.INFINIBAND}
        for port in usable_ports(device, item.admitted.mode):
            names = (_UCX,) if port in infiniband else INDEX_VARIABLES
            index = forced_index(variables, names) if is_computing else None
            yield DeviceTask(device=device.name, port=port, gid_index=index, roce_version=version)


def forced_index(variables: Mapping[str, str], names: Iterable[str] = INDEX_VARIABLES) -> int | None:
    """Return the index in the GID table that these variables of a container force; None if they force none. Values that
    leave the choice to the library (NCCL: -1, UCX: auto) force none."""
    told = (variables.get(name, "").strip() for name in names)
    return next((int(it) for it in told if it.isascii() and it.isdecimal() and len(it) <= _MOST_DIGITS), None)
