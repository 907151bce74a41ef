"""Doors: what others call to reach the engine. Doors do not import each other."""
