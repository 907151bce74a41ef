"""The control socket of the daemon, and its client."""
