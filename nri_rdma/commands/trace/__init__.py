"""`nri-rdma trace`: shows what the daemon did for a pod, and how long each step took."""
