"""The checks of `nri-rdma validate`: files that people write for nri-rdma, checked before they reach a cluster or node.
Pure."""
