"""The QEMU that the machines need: the installed one, or a newer one in a folder of the lab's own.

Debian 12 has QEMU 7.2, which has no igb and takes up to four times as long to start a program in the machine: `ip -V`
43 ms, with 10 16 ms; python3 122 and 73 ms. Its backports have 10. That one is unpacked, not installed: the host's own
virtual machines go on with the QEMU that their administrator chose. Its libraries are those of the installed one.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from deploy.aptsources import main_archive, read_sources
from tests.lab.errors import LabError
from tests.lab.progress import timed

OLDEST = 8
"""The major version."""
_INSTALLED = ("qemu-system-x86_64",)
FOLDER = "qemu"
_BACKPORTS_OF = "bookworm"  # later releases have a QEMU that is new enough
_PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
_OPTIONS = {
    "Dir::Etc::sourceparts": "-",
    "Dir::Etc::preferences": "-",
    "Dir::Etc::preferencesparts": "-",
    "APT::Sandbox::User": "root",  # the folders are root's
    "APT::Update::Error-Mode": "any",
    "APT::Architecture": "amd64",
    "Acquire::Languages": "none",
    "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    "Acquire::Retries": "3",
}


def ensure_emulator(cache: Path) -> tuple[str, ...]:
    """The first words of a QEMU command, of the OLDEST version or a newer one."""
    if _version(_INSTALLED) >= OLDEST:
        return _INSTALLED
    root = cache / FOLDER
    if not root.is_dir():
        with (
            timed(f"fetching a QEMU of version {OLDEST} or newer (once; kept in {root.name})"),
            tempfile.TemporaryDirectory(prefix=f"{FOLDER}-", dir=cache) as scratch,
        ):
            _fetch(Path(scratch))
            (Path(scratch) / "root").rename(root)
    unpacked = _unpacked(root)
    if (found := _version(unpacked)) < OLDEST:
        raise LabError(f"{root} holds QEMU {found}, {OLDEST} is needed. Next: rm -r {root}, and run it again.")
    return unpacked


def major_version(text: str) -> int:
    """Of what `qemu --version` prints; LabError when it is something else."""
    found = re.match(r"QEMU emulator version (\d+)\.", text)
    if found is None:
        raise LabError(f"QEMU does not tell its version: {text.strip()!r}. Next: run qemu-system-x86_64 --version.")
    return int(found.group(1))


def _unpacked(root: Path) -> tuple[str, ...]:
    """Modules and firmware are of the same build."""
    modules = root / "usr/lib/x86_64-linux-gnu/qemu"
    firmware = (word for name in ("qemu", "seabios") for word in ("-L", str(root / "usr/share" / name)))
    return "env", f"QEMU_MODULE_DIR={modules}", str(root / "usr/bin/qemu-system-x86_64"), *firmware


def _version(command: tuple[str, ...]) -> int:
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return major_version(shown.stdout or shown.stderr)


def _fetch(scratch: Path) -> None:
    """The packages' files in the folder `root` of that one."""
    codename = _codename()
    archive = main_archive(read_sources(Path("/etc/apt")), codename)
    if codename != _BACKPORTS_OF or archive is None:
        why = f"that of {codename} is older, and the lab knows no other place" if archive else "apt has no sources"
        raise LabError(f"a QEMU of version {OLDEST} or newer is needed; {why}. Next: install one.")
    suite = f"{codename}-backports"
    (scratch / "lab.sources").write_text(archive.stanza((suite,)))
    for folder in ("lists/partial", "cache/archives/partial", "packages", "root"):
        (scratch / folder).mkdir(parents=True)
    _apt_get(scratch, "update")
    _apt_get(scratch, "download", *(f"{package}/{suite}" for package in _PACKAGES))
    for package in sorted((scratch / "packages").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(scratch / "root")], check=True)


def _apt_get(scratch: Path, *words: str) -> None:
    """On lists and caches of its own: the machine's apt stays as it is."""
    places = {
        "Dir::Etc::sourcelist": scratch / "lab.sources",
        "Dir::State::Lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
    }
    flags = [word for key, value in {**_OPTIONS, **places}.items() for word in ("-o", f"{key}={value}")]
    command = ["apt-get", "-q", *flags, *words]
    done = subprocess.run(command, cwd=scratch / "packages", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n  ".join(done.stderr.splitlines()[-6:])
        raise LabError(
            f"apt-get {words[0]} of {_BACKPORTS_OF}-backports failed:\n  {last}\nNext: does its mirror have it?"
        )


def _codename() -> str:
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', Path("/etc/os-release").read_text(), re.MULTILINE)
    return found.group(1) if found else "none"
