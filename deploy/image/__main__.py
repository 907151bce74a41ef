"""`python -m deploy.image [--arch amd64|arm64] [--out FILE]`: makes the image as an OCI archive, without root.

With --renew it writes the locks anew, with the newest packages that fit.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from deploy.image import debs, layout, sizes, wheels
from deploy.image.architecture import ARCHITECTURES, Architecture, of_this_machine
from deploy.image.archive import Image, pack, write_archive
from deploy.image.steps import CACHE, PROJECT, ImageError, run
from deploy.image.tree import make_tools, make_tree
from nri_rdma import __version__

NAME = f"localhost/nri-rdma:{__version__}"
"""As pods name it, until a registry has it."""


def main() -> int:
    """Build or renew; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument("--arch", choices=ARCHITECTURES, help="by default this machine's")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default build/nri-rdma-ARCH.tar")
    parser.add_argument("--name", default=NAME, help="the name that runtimes give it (%(default)s)")
    parser.add_argument("--renew", action="store_true", help="write debs.lock, wheels.lock and tools.lock anew")
    options = parser.parse_args()
    try:
        if options.renew:
            renew()
            return 0
        architecture = ARCHITECTURES[options.arch] if options.arch else of_this_machine()
        build(architecture, options.out or PROJECT / f"build/nri-rdma-{architecture.name}.tar", options.name)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


def build(architecture: Architecture, out: Path, name: str = NAME) -> None:
    """Write the archive, and print the size of each part. Raise ImageError."""
    started = time.monotonic()
    root = CACHE / f"root-{architecture.name}"
    shutil.rmtree(root, ignore_errors=True)
    tools, revision = make_tools(), read_revision()
    make_tree(root, architecture, tools, revision)
    ours = {path for path in root.rglob("*") if _is_ours(path.relative_to(root))}
    # What changes with each commit is a layer of its own: nodes that have the other one do not pull it again.
    layers = [pack(root, paths, tools.python) for paths in (set(root.rglob("*")) - ours, ours)]
    digest = write_archive(out, _image(architecture, name, revision), layers)
    for line in sizes.describe(root, layers):
        print(line)
    print(f"{out}: {name} for {architecture.name}, {digest}, in {time.monotonic() - started:.0f} s")


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


def _image(architecture: Architecture, name: str, revision: str) -> Image:
    created = run(["git", "log", "-1", "--format=%ct"], "ask git for the commit's time", "see git's words.")
    return Image(
        name=name,
        architecture=architecture,
        created=int(created),
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


def _is_ours(path: Path) -> bool:
    of_package = path.is_relative_to(layout.SITE) and path.relative_to(layout.SITE).parts[:1]
    return bool(of_package and of_package[0].startswith("nri_rdma"))


if __name__ == "__main__":
    sys.exit(main())
