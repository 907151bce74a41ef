"""Listeners to the kernel's events: one for links, addresses and routes, and one for RDMA devices."""
