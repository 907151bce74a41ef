"""CDI: what a device means to a container, described by files that every runtime reads."""
