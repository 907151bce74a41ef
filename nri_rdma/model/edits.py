"""The changes that nri-rdma makes to a container before it is created."""

from __future__ import annotations

from dataclasses import dataclass

from nri_rdma.model.device import CharDevice

RDMA_MAX = "rdma.max"
"""The cgroup file with the limits of the rdma controller, and the key of these limits in the `unified` map of an OCI
spec."""
OWN_VARIABLES = ("NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Environment variables that libraries read, and whose values nri-rdma derives from a container's devices."""
FABRIC_PREFIXES = ("NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_")
"""The prefixes of the variables that a pool may set: for NCCL and RCCL, UCX, NVSHMEM, libfabric and Mooncake."""
HINT_PREFIXES = ("NCCL_", "UCX_")
"""The prefixes of the pool's variables that a request with `use: storage` does not set."""
DEVICES, NETDEVS = "RDMA_DEVICES_", "RDMA_NETDEVS_"
"""The prefixes of the variables that list the devices and the netdevs of a request."""
ENV_PREFIXES = (*FABRIC_PREFIXES, "GLOO_SOCKET_IFNAME", DEVICES, NETDEVS)
"""The prefixes of all variables that nri-rdma may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Changes to one container: device nodes, environment, RLIMIT_MEMLOCK in bytes, and lines of rdma.max (one per
    device)."""

    char_devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memlock: int | None = None
    rdma_max: tuple[str, ...] = ()
    moved_netdevs: tuple[str, ...] = ()
    """Host netdevs that nri-rdma has already moved into the pod, although the container's spec asks the runtime to move
    them."""
