"""Network namespaces: opened, visited, and their settings under /proc/sys."""
