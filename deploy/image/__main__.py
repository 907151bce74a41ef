"""`python -m deploy.image [--arch amd64|arm64|all] [--out FILE]`: makes the image as an OCI archive, without root.

Beside it comes a bill of materials for each architecture. With --renew it writes the locks anew, with the newest
packages that fit.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from deploy.image import debs, layout, sbom, sizes, wheels
from deploy.image.architecture import ARCHITECTURES, Architecture, of_this_machine
from deploy.image.archive import Image, pack, write_archive
from deploy.image.steps import CACHE, PROJECT, ImageError, only_one, run
from deploy.image.tree import Tools, make_tools, make_tree
from nri_rdma import __version__

NAME = f"localhost/nri-rdma:{__version__}"
"""As pods name it, until a registry has it."""
ALL = "all"


def main() -> int:
    """Build or renew; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("--arch", choices=(*ARCHITECTURES, ALL), help="by default this machine's")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default build/nri-rdma-ARCH.tar")
    parser.add_argument("--name", default=NAME, help="the name that runtimes give it (%(default)s)")
    parser.add_argument("--tree", type=Path, metavar="FOLDER", help="for the Dockerfile: write only the files, here")
    parser.add_argument("--revision", help="the commit that it says it is made of (by default, git is asked)")
    parser.add_argument("--renew", action="store_true", help="write debs.lock, wheels.lock and tools.lock anew")
    options = parser.parse_args()
    try:
        with only_one():
            _carry_out(options)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"image: {error}. Next: see who owns the folder, and its free space.", file=sys.stderr)
        return 1
    return 0


def _carry_out(options: argparse.Namespace) -> None:
    if options.renew:
        renew()
        return
    revision, arch = options.revision or read_revision(), options.arch or of_this_machine().name
    architectures = tuple(ARCHITECTURES.values()) if arch == ALL else (ARCHITECTURES[arch],)
    if not options.tree:
        build(architectures, revision, options.out or PROJECT / f"build/nri-rdma-{arch}.tar", options.name)
    elif len(architectures) > 1:
        raise ImageError("--tree is a folder for one architecture. Next: name it with --arch.")
    else:
        make_tree(options.tree, architectures[0], make_tools(), revision)


def build(architectures: Iterable[Architecture], revision: str, out: Path, name: str) -> None:
    """Write the archive and its bills of materials, and print the size of each part. Raise ImageError."""
    started = time.monotonic()
    tools, created = make_tools(), _commit_time()
    images = [_make(architecture, tools, revision, created) for architecture in architectures]
    digest = write_archive(out, name, images)
    for image in images:
        folder = wheels.download(wheels.WHEELS, image.architecture, wheels.Pip(tools.python))
        bill = out.with_name(f"nri-rdma-{image.architecture.name}.sbom.json")
        bill.write_bytes(sbom.describe(image, __version__, folder))
    known_as = " and ".join(image.architecture.name for image in images)
    print(f"{out}: {name} for {known_as}, {digest}, in {time.monotonic() - started:.0f} s")


def renew() -> None:
    """Write the locks anew. Raise ImageError."""
    architectures = ARCHITECTURES.values()
    debs.LOCK.write_text(debs.renew(architectures))
    wheels.TOOLS.write_text(wheels.renew(wheels.TOOL_NAMES, architectures, wheels.Pip()))
    python = wheels.Pip(make_tools().python)
    wheels.WHEELS.write_text(wheels.renew(wheels.requirements(), architectures, python))


def read_revision() -> str:
    """Return the commit that the image is made of; `-changed` after it: with what is not committed."""
    revision, hint = ["git", "rev-parse", "HEAD"], "make the image in a clone of the repository."
    commit = run(revision, "ask git for the commit", hint).strip()
    changes = run(["git", "status", "--porcelain"], "ask git for what is not committed", hint)
    return f"{commit}-changed" if changes else commit


def _make(architecture: Architecture, tools: Tools, revision: str, created: int) -> Image:
    root = CACHE / f"root-{architecture.name}"
    shutil.rmtree(root, ignore_errors=True)
    make_tree(root, architecture, tools, revision)
    ours = {path for path in root.rglob("*") if _is_ours(path.relative_to(root))}
    # What changes with each commit is a layer of its own: nodes that have the other one do not pull it again.
    layers = tuple(pack(root, paths, tools.python) for paths in (set(root.rglob("*")) - ours, ours))
    for line in sizes.describe(root, layers):
        print(line)
    return Image(
        architecture=architecture,
        created=created,
        layers=layers,
        labels={
            "org.opencontainers.image.title": "nri-rdma",
            "org.opencontainers.image.description": "Gives containers their own RDMA hardware",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": __version__,
            "org.opencontainers.image.revision": revision,
        },
        entrypoint=(f"/{layout.BIN}/nri-rdma",),
        command=("run",),
        environment=(f"PATH=/{layout.BIN}", f"SSL_CERT_FILE=/{layout.CERTIFICATES}"),
    )


def _commit_time() -> int:
    return int(run(["git", "log", "-1", "--format=%ct"], "ask git for the commit's time", "see git's words."))


def _is_ours(path: Path) -> bool:
    of_package = path.is_relative_to(layout.SITE) and path.relative_to(layout.SITE).parts[:1]
    return bool(of_package and of_package[0].startswith("nri_rdma"))


if __name__ == "__main__":
    sys.exit(main())
