"""`nri-rdma explain`: what a pod or a claim would get on a node, and why."""
