"""Watchers that notice changes of folders and eBPF programs, and the end of namespaces and processes."""
