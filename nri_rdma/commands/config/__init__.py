"""`nri-rdma config`: the settings, and where each comes from."""
