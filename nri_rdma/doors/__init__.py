"""The doors: the interfaces through which the runtime, the kubelet, OCI hooks and commands reach the engine, which
makes the decisions. Doors do not import each other."""
