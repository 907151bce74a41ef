"""The kernel's description of the hardware, read from a sysfs root: the machine's or a tree shaped like it."""
