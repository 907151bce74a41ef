"""A plugin of the Node Resource Interface (NRI) of containerd and CRI-O."""
