"""`nri-rdma status`: what the daemon says of itself, also for other commands."""
