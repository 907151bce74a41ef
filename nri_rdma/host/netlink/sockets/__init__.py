"""Netlink sockets: they send requests, read the kernel's lists of objects such as links, and are kept open for
reuse."""
