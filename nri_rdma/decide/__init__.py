"""Decisions, pure: no I/O, no clock, no logging."""
