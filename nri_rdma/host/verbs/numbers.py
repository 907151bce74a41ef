"""Constants of libibverbs and librdmacm.

The libraries' ABI fixes the values. pyverbs has these constants too, but in modules whose names differ between its
releases.
"""

from __future__ import annotations

IWARP = 1
"""The value of ibv_transport_type for a device of iWARP."""
LINK_ETHERNET = 2
"""The value of a port's link layer for Ethernet (IBV_LINK_LAYER_ETHERNET)."""
PORT_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
PORT_ACTIVE = 4
PHYSICAL_STATES = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "Training", 5: "LinkUp", 6: "Recovery", 7: "Test"}
GID_TYPES = ("IB", "RoCE v1", "RoCE v2")
"""The names of the types of GIDs, by ibv_gid_type."""
RC, UD = 2, 4
"""The values of ibv_qp_type for queue pairs of reliable connections and of unreliable datagrams."""
INIT = 1
"""The value of ibv_qp_state for an initialised queue pair."""
LOCAL_AND_REMOTE_WRITE = 3
"""The bits of ibv_access_flags that let the device and a peer write into a memory region."""
SEND, RDMA_WRITE = 2, 0
"""The values of ibv_wr_opcode for a send and for a write into the peer's memory."""
SIGNALED = 2
"""The bit of ibv_send_flags with which a work request reports its completion."""
FULL_MEMBER = 0x8000
"""The bit of a P_Key that marks a full member of the partition."""
PS_TCP = 0x0106
"""The value of rdma_port_space for reliable connections (RDMA_PS_TCP)."""
PASSIVE = 1
"""The flag of rdma_addrinfo for a listening end (RAI_PASSIVE)."""
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, ESTABLISHED = 0, 2, 4, 9
"""The values of rdma_cm_event_type for the events that occur while a connection is made."""
