"""`nri-rdma trace`: where the time of a request went."""
