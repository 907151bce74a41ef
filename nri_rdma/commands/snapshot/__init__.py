"""`nri-rdma snapshot`: saves a node in a file, which other commands read in place of a machine."""
