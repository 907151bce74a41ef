"""`nri-rdma snapshot`: a node as a file."""
