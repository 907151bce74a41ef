"""Bytes that nobody ought to send, for everything that reads bytes: `python -m tests.fuzz --seconds 60`."""
