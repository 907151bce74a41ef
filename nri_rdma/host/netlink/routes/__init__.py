"""Routes, rules and neighbours: read, and as requests."""
