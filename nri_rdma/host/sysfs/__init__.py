"""Reads the kernel's description of the hardware from a sysfs root: the machine's own, or a copy."""
