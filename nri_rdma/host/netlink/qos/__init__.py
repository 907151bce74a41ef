"""Reads the queueing disciplines and the data center bridging settings of a link."""
