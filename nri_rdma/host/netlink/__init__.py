"""Links, addresses and routes of the host and of network namespaces. Only this folder may import pyroute2."""
