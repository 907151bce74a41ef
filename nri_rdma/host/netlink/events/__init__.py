"""Streams of the kernel's news: links, addresses and routes; RDMA devices."""
