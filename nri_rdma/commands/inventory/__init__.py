"""`nri-rdma inventory`: the RDMA devices of a node."""
