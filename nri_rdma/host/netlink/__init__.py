"""Access to links, addresses, routes and RDMA devices of network namespaces through netlink. Only this folder imports
pyroute2."""
