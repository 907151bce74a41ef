"""Adapters to this host: kernel, sysfs, kubelet, containerd, cgroups, files."""
