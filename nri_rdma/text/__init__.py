"""Texts that people write, read into values: YAML, TOML, requests, pools, manifests. Pure."""
