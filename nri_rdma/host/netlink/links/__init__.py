"""Reads and changes links: their state, settings, VRFs and eBPF programs."""
