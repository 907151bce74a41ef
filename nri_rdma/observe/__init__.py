"""Spans, log lines and durations of the daemon's own work."""
