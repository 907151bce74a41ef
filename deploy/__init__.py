"""What brings the daemon to the nodes of others."""
