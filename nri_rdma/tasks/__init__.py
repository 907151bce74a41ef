"""Threads that work for others, and waiting for them."""
