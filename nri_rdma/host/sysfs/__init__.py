"""Reads the kernel's description of the hardware from a sysfs root: this machine's own, or a copy of another one."""
