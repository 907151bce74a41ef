"""The doors: the interfaces through which the runtime, the kubelet, OCI hooks and commands reach the engine. Doors do
not import each other."""
