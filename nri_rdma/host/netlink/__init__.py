"""Access to links, addresses, routes and RDMA devices of network namespaces through netlink. No other package of
nri_rdma imports pyroute2."""
