"""The commands of `nri-rdma`, one folder for each. A command reads files or asks the daemon, and prints the result. It
may import from any layer below."""
