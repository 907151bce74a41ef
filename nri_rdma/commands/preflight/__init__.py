"""`nri-rdma preflight`: whether the nodes of a cluster are ready for a daemon."""
