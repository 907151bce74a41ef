"""Held against the Go implementations: ttrpc's module, and nri's plugin stub."""
