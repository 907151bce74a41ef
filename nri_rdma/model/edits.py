"""The edits of a container before it is created."""

from __future__ import annotations

from dataclasses import dataclass

from nri_rdma.model.device import CharDevice

RDMA_MAX = "rdma.max"
"""The control file, and with it the unified value, of the rdma cgroup's limits."""
OWN_VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""The variables that libraries read and that follow from a container's devices."""
FABRIC_PREFIXES = ("NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_")
"""The beginnings of the variables that a pool may give: of NCCL and RCCL, UCX, NVSHMEM, libfabric and Mooncake."""
HINT_PREFIXES = ("NCCL_", "UCX_")
"""The beginnings of the variables that a request for storage does not set."""
DEVICES, NETDEVS = "RDMA_DEVICES_", "RDMA_NETDEVS_"
"""The beginnings of the variables that name the devices and netdevs of a request."""
ENV_PREFIXES = (*FABRIC_PREFIXES, "GLOO_SOCKET_IFNAME", DEVICES, NETDEVS)
"""The beginnings of all variables that nri-rdma may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Edits of one container: device nodes, environment, RLIMIT_MEMLOCK in bytes, rdma.max by line (one per device)."""

    char_devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memlock: int | None = None
    rdma_max: tuple[str, ...] = ()
    moved_netdevs: tuple[str, ...] = ()
    """Netdevs of the host that the runtime was to move, and that are in the pod already."""
