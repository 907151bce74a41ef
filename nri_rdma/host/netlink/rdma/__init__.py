"""The RDMA subsystem: its devices, and who holds objects on them."""
