"""Root folders with the container engines of several Debian suites, in the cache: the machine stays as it is.

An unfinished folder never has its final name, so an interrupted build leaves nothing that would be used.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.lab.bootstrap import bootstrap
from tests.lab.progress import timed
from tests.lab.recipe import PODMAN
from tests.rig import cache

FOLDER = cache.CACHE / "oci"
_TOOLS = FOLDER / "tools"
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/share/info/*")
_OPTIONS = ("Acquire::Check-Valid-Until=false", "APT::Install-Recommends=false")
_PODMAN = (*PODMAN, "iproute2", "python3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A Debian suite, and the packages that its root folder has."""

    name: str
    packages: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The folder, which tells by its name what it was made of."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]
        return FOLDER / f"{self.name}-{digest}"


BOOKWORM = Suite(name="bookworm", packages=_PODMAN)
TRIXIE = Suite(name="trixie", packages=_PODMAN)
FORKY = Suite(name="forky", packages=(*_PODMAN, "docker.io", "docker-cli"))
SUITES = (BOOKWORM, TRIXIE, FORKY)


def ensure_root(suite: Suite) -> Path:
    """Return the suite's root folder, out of the cache or made now; needs root and the machine's Debian mirror."""
    if suite.root.is_dir():
        return suite.root
    FOLDER.mkdir(parents=True, exist_ok=True)
    _ensure_mmdebstrap()
    for stale in FOLDER.glob(f"{suite.name}-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=FOLDER) as folder:
        made = Path(folder) / "root"
        with timed(f"installing the container engines of {suite.name} (once; kept in .cache/oci/{suite.root.name})"):
            bootstrap(
                *(made, FOLDER / f"{suite.name}.log"),
                suites=(suite.name,),
                packages=suite.packages,
                left_out=_LEFT_OUT,
                variant="minbase",
            )
        made.rename(suite.root)
    return suite.root


def _ensure_mmdebstrap() -> None:
    """Have mmdebstrap in this process's PATH: out of its package, which nobody installs for it."""
    if shutil.which("mmdebstrap") is not None:
        return
    program = _TOOLS / "usr/bin/mmdebstrap"
    if not program.exists():
        _TOOLS.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-q", "download", "mmdebstrap"], cwd=_TOOLS, check=True, capture_output=True)
        (package,) = _TOOLS.glob("mmdebstrap_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(_TOOLS)], check=True)
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"  # mmdebstrap looks there for mmtarfilter
