"""`nri-rdma claims`: the manifests that a cluster needs for the driver of claims and for the guard."""
