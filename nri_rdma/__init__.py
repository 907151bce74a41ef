"""nri-rdma gives containers their own RDMA hardware."""

__version__ = "0.1.0"
