"""The checks of `nri-rdma doctor`: problems of a machine that keep pods from getting RDMA devices."""
