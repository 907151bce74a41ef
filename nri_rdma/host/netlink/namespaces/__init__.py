"""Opens network namespaces, lets threads enter them, and reaches their settings under /proc/sys."""
