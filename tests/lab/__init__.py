"""The lab: one virtual machine with a stock Debian kernel, RDMA and a real container runtime."""
