"""`nri-rdma config`: shows the settings with the origin of each, checks a configuration file, and prints its schema."""
