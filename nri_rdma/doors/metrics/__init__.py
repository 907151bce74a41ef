"""The metrics page for Prometheus and the health page, over HTTP."""
