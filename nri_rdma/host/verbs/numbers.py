"""Constants of libibverbs and librdmacm.

The libraries' ABI fixes the values. pyverbs has these constants too, but in modules whose names differ between its
releases.
"""

from __future__ import annotations

IWARP = 1
"""A value of ibv_transport_type."""
LINK_ETHERNET = 2
"""The link layer of an Ethernet port."""
PORT_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
PORT_ACTIVE = 4
PHYSICAL_STATES = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "Training", 5: "LinkUp", 6: "Recovery", 7: "Test"}
GID_TYPES = ("IB", "RoCE v1", "RoCE v2")
"""The types of GIDs, by ibv_gid_type."""
RC, UD = 2, 4
"""Values of ibv_qp_type."""
INIT = 1
"""A value of ibv_qp_state."""
LOCAL_AND_REMOTE_WRITE = 3
"""Bits of ibv_access_flags."""
SEND, RDMA_WRITE = 2, 0
"""Values of ibv_wr_opcode."""
SIGNALED = 2
"""A bit of ibv_send_flags."""
FULL_MEMBER = 0x8000
"""The bit of a P_Key that marks a full member of the partition."""
PS_TCP = 0x0106
"""A value of rdma_port_space."""
PASSIVE = 1
"""The flag RAI_PASSIVE."""
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, ESTABLISHED = 0, 2, 4, 9
"""Values of rdma_cm_event_type."""
