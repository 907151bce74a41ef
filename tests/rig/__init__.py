"""A container runtime, a pretend node and the measurements of the host, for tests that run the real thing."""
