"""Set up other programs for nri-rdma, and undo that."""
