"""Real podman and Docker, of several Debian suites, whose containers get their devices through the OCI hook."""
