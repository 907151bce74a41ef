"""Links: their state, settings and programs, read and changed."""
