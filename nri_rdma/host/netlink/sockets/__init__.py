"""Netlink sockets: requests, lists, and sockets that are kept open."""
