"""`nri-rdma uninstall kubernetes` and `uninstall node`: remove from a cluster or a node everything that nri-rdma's
daemons wrote there."""
