"""`nri-rdma claims`: prints the Kubernetes objects that a cluster needs for our DRA driver and for the guard, an OCI
hook that keeps a container from starting without its devices."""
