"""`nri-rdma claims`: prints the Kubernetes objects that a cluster needs for our DRA driver and for the guard, the OCI
hook that refuses containers while no daemon runs."""
