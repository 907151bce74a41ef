"""`nri-rdma cdi`: lists, checks and writes CDI specs."""
