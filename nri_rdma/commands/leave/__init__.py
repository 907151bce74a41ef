"""nri-rdma leaves a cluster: its daemons end everywhere, and each node is as it was before."""
