"""The lab's disk image, built from Debian packages and kept by content.

A build happens in a folder of its own, which takes its final name in one step: an interrupted build leaves no entry.
Whoever calls holds the lab's lock. What an entry holds is never written again (the machine gets a throwaway overlay).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.lab.bootstrap import bootstrap
from tests.lab.errors import LabError
from tests.lab.initrd import build_initrd
from tests.lab.progress import say, timed
from tests.lab.recipe import LEFT_OUT, Recipe
from tests.lab.workload import workload_image
from tests.lab.workshop import PROBE, WORKSHOP, ensure_workshop

UNFINISHED = "unfinished-"
_SITE = "usr/lib/lab/site"
_FREE_MIB = 1024
# The guest's wheels are fetched by another python: pip cannot ask that one what it takes.
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A finished build."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"


def ensure_image(recipe: Recipe, cache: Path) -> Image:
    """The recipe's image, out of its kernel's part of the cache or built now; the one before it is removed."""
    part = cache / recipe.kernel
    part.mkdir(parents=True, exist_ok=True)
    entry = part / recipe.digest()
    for stale in part.iterdir():
        if stale != entry and not stale.name.startswith(WORKSHOP):
            shutil.rmtree(stale)
    if entry.is_dir():
        return Image(folder=entry)
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=part))
    try:
        with timed(f"building the image of kernel {recipe.kernel} (once; kept in {part.name}/{entry.name})"):
            _build(recipe, part, unfinished)
        unfinished.rename(entry)
    finally:
        if unfinished.exists():
            shutil.rmtree(unfinished)
    return Image(folder=entry)


def _build(recipe: Recipe, cache: Path, target: Path) -> None:
    if os.geteuid() != 0:
        raise LabError("building the image needs root. Next: run it as root (once; the image is kept).")
    root = target / "root"
    with timed(f"installing Debian {recipe.suite}"):
        bootstrap(
            *(root, target / "mmdebstrap.log"),
            suites=recipe.suites,
            packages=recipe.packages,
            left_out=LEFT_OUT,
            variant="apt",
        )
    with timed("fetching the guest's python packages"):
        _fetch_wheels(recipe, root, target / "wheels", target / "pip.log")
    with timed("installing them"):
        _install_wheels(root, target / "wheels")
    release = _kernel_release(root)
    _install_workshop(ensure_workshop(recipe, release, cache), root / "usr/lib/lab")
    with timed("writing the workload image"):
        images = root / "usr/lib/lab/images"
        images.mkdir(parents=True)
        (images / "workload.tar").write_bytes(workload_image(root))
    with timed(f"writing the disk (kernel {release})"):
        shutil.copyfile(root / f"boot/vmlinuz-{release}", target / "vmlinuz")
        (target / "initrd").write_bytes(build_initrd(root, release))
        _write_disk(root, target / "root.img")
    shutil.rmtree(root)
    shutil.rmtree(target / "wheels")


def _fetch_wheels(recipe: Recipe, root: Path, wheels: Path, log: Path) -> None:
    """Wheels for the guest's python, which may be newer than any on the host."""
    version = (root / "usr/bin/python3").readlink().name.removeprefix("python")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"),
        *("--implementation", "cp", "--python-version", version, "--dest", str(wheels), "--log", str(log)),
        *(word for platform in _PLATFORMS for word in ("--platform", platform)),
        *recipe.requirements,
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"pip cannot fetch wheels for python {version}:\n{done.stderr.strip()}\nNext: see its answer.")


def _install_wheels(root: Path, wheels: Path) -> None:
    """Unpacks them and lets the guest's own python compile them: every run starts without bytecode of its own."""
    site = root / _SITE
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            if any(".data/purelib/" in name or ".data/platlib/" in name for name in archive.namelist()):
                raise LabError(f"{wheel.name} does not unpack in place. Next: install it with pip in image.py.")
            archive.extractall(site)
    compile_all = ["chroot", str(root), "python3", "-m", "compileall", "-q", f"/{_SITE}"]
    subprocess.run(compile_all, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


def _install_workshop(workshop: Path, lab: Path) -> None:
    shutil.copytree(workshop / "modules", lab / "modules")
    shutil.copyfile(workshop / PROBE, lab / PROBE)
    (lab / PROBE).chmod(0o755)


def _kernel_release(root: Path) -> str:
    releases = sorted(path.name for path in (root / "usr/lib/modules").iterdir())
    if len(releases) != 1:
        raise LabError(f"the image holds the kernels {releases}, one is expected. Next: look at recipe.py.")
    return releases[0]


def _write_disk(root: Path, disk: Path) -> None:
    used = subprocess.run(["du", "-sm", str(root)], capture_output=True, text=True, check=True).stdout.split()[0]
    # No journal, no checksums: every run starts from the same bytes and throws its own away.
    features = "^has_journal,^metadata_csum"
    size = f"{int(used) + _FREE_MIB}M"
    command = ["mke2fs", "-q", "-t", "ext4", "-O", features, "-m", "0", "-d", str(root), str(disk), size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"mke2fs failed: {done.stderr.strip()}. Next: is there room for {size}?")
    say(f"the root folder has {used} MiB")
