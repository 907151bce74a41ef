"""The socket through which our OCI hook asks for the devices of podman's and Docker's containers."""
