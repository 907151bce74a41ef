"""`nri-rdma topology`: how near the devices of a node are to its GPUs."""
