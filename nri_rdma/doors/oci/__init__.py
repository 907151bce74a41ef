"""The socket for our OCI hook, which asks for containers of podman and Docker."""
