"""The commands `nri-rdma install` and `uninstall`: they write and remove the files that container runtimes need for
nri-rdma."""
