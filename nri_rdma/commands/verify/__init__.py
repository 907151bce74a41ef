"""The command `nri-rdma verify`: which devices of a container it tests, how, and what the results mean."""
