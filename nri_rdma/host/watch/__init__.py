"""Watchers of namespaces, processes and folders."""
