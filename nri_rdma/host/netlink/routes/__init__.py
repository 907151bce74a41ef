"""Reads routes, rules and neighbours of network namespaces, and builds the requests that add and remove them."""
