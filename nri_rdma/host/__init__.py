"""Adapters between nri-rdma and the host that it runs on: kernel, sysfs, kubelet, containerd, cgroups and files."""
