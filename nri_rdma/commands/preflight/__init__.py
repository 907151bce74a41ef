"""`nri-rdma preflight`: checks with doctor whether the nodes of a cluster are ready for a daemon."""
