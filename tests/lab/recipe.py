"""What goes into an image of the lab, with the name under which it is cached."""

import hashlib
import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_LAB = Path(__file__).resolve().parent
_BUILDERS = ("image.py", "initrd.py", "workload.py")
_FROM_DEV_GROUP = ("grpcio", "pytest", "pytest-timeout")

_PACKAGES = (
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "linux-image-amd64",  # the cloud kernel has no rxe
    "python3",
    "runc",
)
_LEFT_OUT = (
    "/etc/kernel/postinst.d/*",  # would build a large initrd; the lab makes its own (initrd.py)
    "/usr/lib/modules/*/kernel/drivers/gpu/*",
    "/usr/lib/modules/*/kernel/drivers/media/*",
    "/usr/lib/modules/*/kernel/sound/*",
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what an image holds, the archive's own state aside."""

    suite: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...]
    requirements: tuple[str, ...]

    def digest(self) -> str:
        """Changes with the recipe and with the code that follows it."""
        content = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode())
        for name in _BUILDERS:
            content.update((_LAB / name).read_bytes())
        return content.hexdigest()[:16]


def forky(pyproject: Path = CHECKOUT / "pyproject.toml") -> Recipe:
    """Debian forky: kernel 7.2, containerd 2.x."""
    return Recipe(
        suite="forky",
        packages=_PACKAGES,
        left_out=_LEFT_OUT,
        requirements=guest_requirements(pyproject.read_text()),
    )


def guest_requirements(pyproject: str) -> tuple[str, ...]:
    """The product's own dependencies, with what the guest's tests need from the dev group."""
    data = tomllib.loads(pyproject)
    dev = [text for text in data["dependency-groups"]["dev"] if _project_name(text) in _FROM_DEV_GROUP]
    return tuple(sorted([*data["project"]["dependencies"], *dev]))


def _project_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found.group() if found else ""
