"""What Debian does not ship, compiled out of Debian's own source: kernel modules, and a verbs program of the lab's.

siw and netdevsim are left out of Debian's kernels. rxe is there, but cannot change its namespace: the kernel refuses
that to drivers without `disassociate_ucontext`, so the lab gives it an empty one. Nothing of it is committed, and the
stock rxe stays the one that `modprobe` finds.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.lab.bootstrap import CONTAINED, bootstrap, run_logged
from tests.lab.errors import LabError
from tests.lab.progress import timed
from tests.lab.recipe import LEFT_OUT, Recipe

WORKSHOP = "workshop-"
PROBE = "verbs-probe"
PROBE_SOURCE = Path(__file__).resolve().parent / "verbs_probe.c"
_PACKAGES = (
    *("bash", "coreutils", "dash", "findutils", "grep", "mawk", "sed"),  # extracted, not installed: nothing is there
    *("gcc", "libc6-dev", "libibverbs-dev", "linux-headers-amd64", "linux-source", "make"),
)
_DRIVERS = "drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A module of the kernel tree, by its folder and the word that switches it on."""

    module: str
    folder: str
    option: str


DRIVERS = (
    Driver(module="siw", folder="infiniband/sw/siw", option="CONFIG_RDMA_SIW"),
    Driver(module="rdma_rxe", folder="infiniband/sw/rxe", option="CONFIG_RDMA_RXE"),
    Driver(module="netdevsim", folder="net/netdevsim", option="CONFIG_NETDEVSIM"),
)
_RXE_VERBS = "infiniband/sw/rxe/rxe_verbs.c"
_RXE_OPS = "static const struct ib_device_ops rxe_dev_ops = {\n"
_RXE_CAN_MOVE = (
    "static void rxe_disassociate_ucontext(struct ib_ucontext *ibcontext) { }\n\n"
    f"{_RXE_OPS}\t.disassociate_ucontext = rxe_disassociate_ucontext,\n"
)


def ensure_workshop(recipe: Recipe, kernel_release: str, cache: Path) -> Path:
    """A folder with `modules/*.ko` for that kernel and `verbs-probe`, out of the cache or made now."""
    entry = cache / f"{WORKSHOP}{kernel_release}-{_digest(recipe)}"
    if entry.is_dir():
        return entry
    for stale in cache.glob(f"{WORKSHOP}*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=cache) as folder:
        made = Path(folder) / "made"
        with timed(f"compiling modules for {kernel_release} (once; kept in {entry.name})"):
            _make(recipe, kernel_release, Path(folder) / "root", made)
        made.rename(entry)
    return entry


def can_move(source: str) -> str:
    """rxe's verbs with the operation that lets the device change its namespace."""
    if source.count(_RXE_OPS) != 1:
        raise LabError(f"{_RXE_VERBS} does not look as the lab knows it. Next: see workshop.py.")
    return source.replace(_RXE_OPS, _RXE_CAN_MOVE)


def _digest(recipe: Recipe) -> str:
    parts = (recipe.kernel_suite.encode(), Path(__file__).read_bytes(), PROBE_SOURCE.read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _make(recipe: Recipe, kernel_release: str, root: Path, made: Path) -> None:
    (made / "modules").mkdir(parents=True)
    log = made / "build.log"
    bootstrap(root, log, suites=(recipe.kernel_suite,), packages=_PACKAGES, left_out=LEFT_OUT, variant="extract")
    if not (root / f"usr/src/linux-headers-{kernel_release}").is_dir():
        raise LabError(f"Debian has no headers of {kernel_release} any more. Next: rm -r .cache/lab, and try again.")
    (root / "usr/bin/awk").symlink_to("mawk")  # nothing was configured: alternatives are ours to make
    (root / "proc").mkdir(exist_ok=True)
    _unpack(root)
    verbs = root / _DRIVERS / _RXE_VERBS
    verbs.write_text(can_move(verbs.read_text()))
    build = f"/usr/src/linux-headers-{kernel_release}"
    for driver in DRIVERS:
        folder = f"/{_DRIVERS}/{driver.folder}"
        _run(root, log, ["make", "-s", "-j2", "-C", build, f"M={folder}", f"{driver.option}=m", "modules"])
        shutil.copyfile(root / folder.lstrip("/") / f"{driver.module}.ko", made / "modules" / f"{driver.module}.ko")
    shutil.copyfile(PROBE_SOURCE, root / PROBE_SOURCE.name)
    probe = ["gcc", "-O2", "-Wall", "-D_GNU_SOURCE", f"/{PROBE_SOURCE.name}", "-o", f"/{PROBE}", "-libverbs"]
    _run(root, log, probe)
    shutil.copyfile(root / PROBE, made / PROBE)


def _unpack(root: Path) -> None:
    """The drivers' folders out of the one archive of the kernel's source."""
    archives = list((root / "usr/src").glob("linux-source-*.tar.xz"))
    if len(archives) != 1:
        raise LabError(f"one archive of kernel source is expected, found {archives}. Next: see workshop.py.")
    top = archives[0].name.removesuffix(".tar.xz")
    folders = [f"{top}/drivers/{driver.folder}" for driver in DRIVERS]
    subprocess.run(["tar", "-xf", archives[0], "-C", root, "--strip-components=1", *folders], check=True)


def _run(root: Path, log: Path, command: Iterable[str]) -> None:
    """In the root folder, with a /proc (objtool reads its limits there)."""
    words = tuple(command)
    code = run_logged([*CONTAINED, f"--mount-proc={root / 'proc'}", "chroot", str(root), *words], log)
    if code != 0:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise LabError(f"{' '.join(words)} failed ({code}):\n  {last}\nNext: see workshop.py.")
