"""The NRI door."""
