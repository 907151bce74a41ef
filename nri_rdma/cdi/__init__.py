"""CDI (Container Device Interface): specs that describe to every runtime how a container gets a device."""
