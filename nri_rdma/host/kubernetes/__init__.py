"""The API server of Kubernetes; the only importer of its client library."""
