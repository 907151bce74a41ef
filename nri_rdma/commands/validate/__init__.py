"""What people write for nri-rdma, checked before a cluster or a node sees it. Pure."""
