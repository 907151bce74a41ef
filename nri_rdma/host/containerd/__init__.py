"""Queries of containerd over its API and its command, and the clean-up of what it leaves of sandboxes that we
refused."""
