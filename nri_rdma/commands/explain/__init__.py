"""`nri-rdma explain`: shows what a pod or a claim would get on a node, and why."""
