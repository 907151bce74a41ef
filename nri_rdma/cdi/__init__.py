"""CDI: what a device means to a container, told by files that every runtime reads."""
