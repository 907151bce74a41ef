"""Clients of the kubelet: they ask which devices it allocated to the pods of its node."""
