"""The only home of pyroute2: links, addresses and routes of the host and of network namespaces."""
