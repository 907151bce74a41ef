"""Queueing disciplines and data center bridging of a link."""
