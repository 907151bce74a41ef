"""The door of OCI hooks: containers of podman and Docker, which ask by the hooks of a CDI spec."""
