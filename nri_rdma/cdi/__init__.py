"""CDI: what a device means to a container, told by files that every runtime reads."""

from pathlib import Path

DEFAULT_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""In rising priority, as CDI has them: what an administrator wrote, then what programs write."""
