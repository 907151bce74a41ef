"""`nri-rdma topology`: shows how near the RDMA devices of a node are to its GPUs."""
