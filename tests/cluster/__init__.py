"""A real Kubernetes on this machine: etcd, the control plane and kubelets, with containerd and nri-rdma."""
