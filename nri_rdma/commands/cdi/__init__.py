"""`nri-rdma cdi`: the CDI specs of a node, and the specs that are written for it."""
