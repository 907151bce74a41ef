"""Spans, log fields and the ring of recent traces."""
