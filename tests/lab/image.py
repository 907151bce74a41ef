"""The lab's disk image, built from Debian packages and kept by content.

A build happens in a folder of its own, which takes its final name in one step: an interrupted build leaves no entry.
Whoever calls holds the lab's lock. What an entry holds is never written again (the machine gets a throwaway overlay).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.initrd import build_initrd
from tests.lab.progress import say, timed
from tests.lab.recipe import Recipe
from tests.lab.workload import workload_image
from tests.rig.aptsources import main_archive, read_sources

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
    """The recipe's image, out of the cache or built now; every other entry of the cache is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    entry = cache / recipe.digest()
    for stale in cache.iterdir():
        if stale.is_dir() and stale != entry:
            shutil.rmtree(stale)
    if entry.is_dir():
        return Image(folder=entry)
    unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=cache))
    try:
        with timed(f"building the {recipe.suite} image (once; kept in {cache.name}/{entry.name})"):
            _build(recipe, unfinished)
        unfinished.rename(entry)
    finally:
        if unfinished.exists():
            shutil.rmtree(unfinished)
    return Image(folder=entry)


def _build(recipe: Recipe, target: Path) -> None:
    if os.geteuid() != 0:
        raise LabError("building the image needs root. Next: run it as root (once; the image is kept).")
    root = target / "root"
    with timed(f"installing Debian {recipe.suite}"):
        _bootstrap(recipe, root, target / "mmdebstrap.log")
    with timed("fetching the guest's python packages"):
        _fetch_wheels(recipe, root, target / "wheels", target / "pip.log")
    with timed("installing them"):
        _install_wheels(root, target / "wheels")
    release = _kernel_release(root)
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


def _bootstrap(recipe: Recipe, root: Path, log: Path) -> None:
    options = {
        "Acquire::Check-Valid-Until": "false",  # a testing suite's Release file can be past its date
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        **_apt_proxies(),
    }
    command = [
        # Its mounts of /proc, /sys and /dev, and every process it starts, live in namespaces that die with us, however
        # we end: nothing goes on writing, and nobody can remove the host's /dev through a left-over mount.
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
        *("mmdebstrap", "--mode=root", "--format=directory", "--variant=apt", "--verbose"),
        *(f'--aptopt={name} "{value}"' for name, value in options.items()),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.left_out),
        f"--include={','.join(recipe.packages)}",
        *(recipe.suite, str(root), _debian_mirror()),
    ]
    code = _run_logged(command, log)
    if code != 0:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise LabError(f"mmdebstrap failed ({code}):\n  {last}\nNext: can apt-get reach its mirror?")


def _run_logged(command: list[str], log: Path) -> int:
    """The exit code; when we are interrupted, the end of the last process that the command started is awaited."""
    pipe, nothing, merged = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    with log.open("wb") as out, subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=merged) as process:
        assert process.stdout is not None  # asked for above
        try:
            shutil.copyfileobj(process.stdout, out)
        except BaseException:
            process.kill()
            shutil.copyfileobj(process.stdout, out)
            raise
        return process.wait()


def _debian_mirror() -> str:
    """The archive that serves this machine's own release serves the lab's suite too."""
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', Path("/etc/os-release").read_text(), re.MULTILINE)
    codename = found.group(1) if found else "none"
    archive = main_archive(read_sources(Path("/etc/apt")), codename)
    if archive is None:
        raise LabError(
            f"no apt source of this machine names {codename} with the component main. "
            "Next: add Debian's own archive to /etc/apt/sources.list.d."
        )
    return archive.uris[0]


def _apt_proxies() -> dict[str, str]:
    """mmdebstrap does not read the machine's apt configuration; a machine behind a proxy needs this part of it."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r'^(Acquire::https?::Proxy\S*) "([^"]+)";$', dump, re.MULTILINE))


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
