"""Queries and changes the kernel's RDMA subsystem: its devices, and the processes and kernel users that hold objects on
them."""
