"""`nri-rdma snapshot`: saves a description of a node in a file. Other commands can read the file instead of a
machine."""
