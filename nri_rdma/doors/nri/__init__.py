"""Door 1: the plugin end of the Node Resource Interface of containerd and CRI-O."""
