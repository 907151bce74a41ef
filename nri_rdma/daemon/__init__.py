"""The daemon: the only place that wires adapters, engine and doors together."""
