"""`nri-rdma status`: shows what the daemon is doing. Also the readers of the status document that other commands
use."""
