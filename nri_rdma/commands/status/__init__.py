"""`nri-rdma status`: shows what the daemon is doing. Other commands use these readers of the status document, too."""
