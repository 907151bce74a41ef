"""Uninstall nri-rdma from a cluster or from a node, so that each node is as it was before."""
