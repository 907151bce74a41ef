"""Attach and undo: move the hardware of a sandbox into its network namespace, and return it to the host unchanged."""
