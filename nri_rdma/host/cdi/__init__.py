"""Reads, watches and writes the folders of this host that hold CDI specs."""
