"""A client of the API server of Kubernetes. Only this folder imports the Python library `kubernetes`."""
