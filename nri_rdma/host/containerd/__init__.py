"""What containerd leaves of the sandboxes that we refused, and its own API to remove that."""
