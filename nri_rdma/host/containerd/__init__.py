"""Queries containerd by its API and its command, and removes what it leaves behind of sandboxes that the daemon
refused."""
