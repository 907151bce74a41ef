"""The daemon that only reports what it would do."""
