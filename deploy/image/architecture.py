"""The architectures that there is an image for."""

import platform
from dataclasses import dataclass

from deploy.image.steps import ImageError

NEWEST_GLIBC = 41
"""The image's glibc is 2.41, so wheels may be made for it or for any older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture by its names."""

    name: str
    """As Debian, Go and OCI call it."""
    machine: str
    """As the kernel and wheels call it."""
    loader: str
    """The file of glibc that starts programs."""

    @property
    def triplet(self) -> str:
        """The folder of Debian's shared libraries."""
        return f"{self.machine}-linux-gnu"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The tags of wheels that run in the image."""
        numbered = (f"manylinux_2_{minor}_{self.machine}" for minor in range(NEWEST_GLIBC, 16, -1))
        return (*numbered, f"manylinux2014_{self.machine}")


AMD64 = Architecture(name="amd64", machine="x86_64", loader="ld-linux-x86-64.so.2")
ARM64 = Architecture(name="arm64", machine="aarch64", loader="ld-linux-aarch64.so.1")
ARCHITECTURES = {it.name: it for it in (AMD64, ARM64)}


def of_this_machine() -> Architecture:
    """Return the architecture that programs run on here. Raise ImageError when there is no image for it."""
    found = next((it for it in ARCHITECTURES.values() if it.machine == platform.machine()), None)
    if found is None:
        raise ImageError(f"the image cannot be made on {platform.machine()}. Next: use {' or '.join(ARCHITECTURES)}.")
    return found
