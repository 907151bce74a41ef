"""What goes into an image of the lab, with the name under which it is cached."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_LAB = Path(__file__).resolve().parent
_BUILDERS = (
    *("bootstrap.py", "image.py", "initrd.py", "verbs_probe.c", "workload.py", "workshop.py"),
    *("../../deploy/aptsources.py", "../rig/oci.py"),
)
_FROM_DEV_GROUP = ("pytest", "pytest-timeout")

PODMAN = ("podman", "crun", "runc", "netavark", "catatonit")
"""podman with what it starts; tests/oci has the same of other suites."""
_PACKAGES = (
    *PODMAN,
    "busybox-static",
    "containerd",
    "containernetworking-plugins",
    "dbus",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "pciutils",
    "perftest",
    "python3",
    "python3-pyverbs",
    "rdma-core",
    "rdmacm-utils",
    "systemd",
    "systemd-sysv",
    "udev",
)
LEFT_OUT = (
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

    kernel: str
    kernel_suite: str
    suite: str
    requirements: tuple[str, ...]

    @property
    def suites(self) -> tuple[str, ...]:
        """Where packages come from, the user space's suite first."""
        return (self.suite,) if self.suite == self.kernel_suite else (self.suite, self.kernel_suite)

    @property
    def packages(self) -> tuple[str, ...]:
        """What is installed; the *cloud* kernel has no rxe."""
        return (*_PACKAGES, f"linux-image-amd64/{self.kernel_suite}")

    def digest(self) -> str:
        """Changes with the recipe and with the code that follows it."""
        described = {**asdict(self), "packages": self.packages, "left_out": LEFT_OUT}
        content = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name in _BUILDERS:
            content.update((_LAB / name).read_bytes())
        return content.hexdigest()[:16]


# The user space of bookworm is too old for 6.1 to bring its own: its containerd 1.6 has no NRI.
_SUITES = {"7.2": ("forky", "forky"), "6.12": ("trixie", "trixie"), "6.1": ("trixie", "bookworm")}
KERNELS = tuple(_SUITES)
DEFAULT_KERNEL = KERNELS[0]


def recipe_for(kernel: str, pyproject: Path = CHECKOUT / "pyproject.toml") -> Recipe:
    """The image with one of KERNELS."""
    suite, kernel_suite = _SUITES[kernel]
    requirements = guest_requirements(pyproject.read_text())
    return Recipe(kernel=kernel, kernel_suite=kernel_suite, suite=suite, requirements=requirements)


def guest_requirements(pyproject: str) -> tuple[str, ...]:
    """The product's own dependencies, with what the guest's tests need from the dev group."""
    data = tomllib.loads(pyproject)
    dev = [text for text in _group(data["dependency-groups"], "dev") if _project_name(text) in _FROM_DEV_GROUP]
    return tuple(sorted([*data["project"]["dependencies"], *dev]))


def _group(groups: Mapping[str, Sequence[str | Mapping[str, str]]], name: str) -> Iterator[str]:
    """Yield the requirements of a dependency group, with those of the groups that it includes (PEP 735)."""
    for item in groups[name]:
        if isinstance(item, str):
            yield item
        else:
            yield from _group(groups, item["include-group"])


def _project_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found.group() if found else ""
