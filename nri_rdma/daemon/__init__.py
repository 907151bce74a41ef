"""The daemon. Only this package connects the engine with the code for the host and with the interfaces for runtime,
kubelet, podman and Docker."""
