"""Numbers of libibverbs and librdmacm.

They are fixed by the libraries' ABI. pyverbs names them, in modules whose names differ between releases.
"""

from __future__ import annotations

IWARP = 1
"""ibv_transport_type"""
LINK_ETHERNET = 2
"""The link layer of a port."""
PORT_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
PORT_ACTIVE = 4
PHYSICAL_STATES = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "Training", 5: "LinkUp", 6: "Recovery", 7: "Test"}
GID_TYPES = ("IB", "RoCE v1", "RoCE v2")
"""ibv_gid_type"""
RC, UD = 2, 4
"""ibv_qp_type"""
INIT = 1
"""ibv_qp_state"""
LOCAL_AND_REMOTE_WRITE = 3
"""ibv_access_flags"""
SEND, RDMA_WRITE = 2, 0
"""ibv_wr_opcode"""
SIGNALED = 2
"""ibv_send_flags"""
FULL_MEMBER = 0x8000
"""The bit of a P_Key."""
PS_TCP = 0x0106
"""rdma_port_space"""
PASSIVE = 1
"""RAI_PASSIVE"""
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, ESTABLISHED = 0, 2, 4, 9
"""rdma_cm_event_type"""
