"""The command `nri-rdma verify`: which devices are looked at, what is asked of them, and what their answers mean."""
