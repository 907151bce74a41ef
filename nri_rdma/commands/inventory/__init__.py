"""`nri-rdma inventory`: shows the RDMA devices and GPUs of a node."""
