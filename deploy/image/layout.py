"""The places of things in the image: what of a Debian package goes where, and what of a wheel is left out."""

import re
from pathlib import PurePosixPath

from deploy.image.architecture import Architecture

FOLDER = PurePosixPath("opt/nri-rdma")
"""All that hosts need, too."""
STANDARD_LIBRARY = FOLDER / "lib/python3.13"
SITE = FOLDER / "local/lib/python3.13/dist-packages"
"""Where Debian's Python looks for what pip installs."""
BIN = FOLDER / "bin"
PYTHON = BIN / "python3.13"
AUTHORITIES = PurePosixPath("usr/share/ca-certificates/mozilla")
"""Where Debian has each authority's certificate."""
CERTIFICATES = PurePosixPath("etc/ssl/certs/ca-certificates.crt")
PATH_ROOM = 60
"""Times `./` in the paths that programs have, so that a longer folder than ours fits in its place."""

_LEFT_OUT = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "__pycache__")
"""Of the standard library: nothing here imports them."""
_SOURCES = {".pyi", ".pyx", ".pxd", ".c", ".h", ".cc", ".proto"}
_RECORDS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Where and by whom a wheel was unpacked: they differ with the folder of the build."""
_NOT_IMPORTED = (
    "kubernetes/aio/",
    "kubernetes/docs/",
    "kubernetes/e2e_test/",
    "kubernetes/test/",
    *(f"kubernetes/client/{part}/" for part in ("api", "models")),
)
"""Parts of kubernetes that are imported only when a name in them is used, and none is (docs/adr/0055)."""


def place_of_debian(name: str, architecture: Architecture) -> PurePosixPath | None:
    """Return the path in the image for a path in a Debian package, or None for what the image goes without."""
    path = PurePosixPath(name)
    libraries = f"usr/lib/{architecture.triplet}"
    if name == "usr/bin/python3.13":
        return PYTHON
    if str(path.parent) == libraries and ".so" in path.name:
        return FOLDER / "lib" / path.name
    if path.is_relative_to("usr/lib/python3.13"):
        below = path.relative_to("usr/lib/python3.13")
        return None if set(below.parts) & set(_LEFT_OUT) else STANDARD_LIBRARY / below
    if path.is_relative_to("usr/lib/python3/dist-packages/pyverbs"):
        below = path.relative_to("usr/lib/python3/dist-packages")
        return None if is_left_out(str(below)) else SITE / below
    stays = (f"{libraries}/libibverbs/.*", "etc/libibverbs.d/.*", f"{AUTHORITIES}/.*", "usr/share/doc/[^/]+/copyright")
    return path if re.fullmatch("|".join(stays), name) else None


def is_left_out(name: str) -> bool:
    """Tell whether nothing imports a file, by its path below the folder of Python packages."""
    path = PurePosixPath(name)
    if path.name in _RECORDS and path.parent.suffix == ".dist-info":
        return True
    if path.parts[0] in ("bin", "share") or path.suffix in _SOURCES or _is_test(path):
        return True
    return name.startswith(_NOT_IMPORTED) and not re.fullmatch(r"kubernetes/client/(api|models)/__init__\.py", name)


def _is_test(path: PurePosixPath) -> bool:
    return "tests" in path.parts[1:] or re.fullmatch(r"test_\w+\.py|\w+_test\.py", path.name) is not None


def long_path() -> str:
    """Return the path of the shared libraries as programs have it: long enough to be overwritten in place where the
    folder is copied to another path. It is absolute, since `$ORIGIN` is not known without a fitting /proc."""
    return f"/{FOLDER}/{'./' * PATH_ROOM}lib"
