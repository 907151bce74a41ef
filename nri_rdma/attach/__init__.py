"""Attach and undo: the hardware of a sandbox is moved into its namespace, and comes home unchanged."""
