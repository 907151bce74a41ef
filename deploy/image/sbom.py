"""The image's bill of materials, as CycloneDX: the packages of the locks, each with the hash of the file it came in."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from deploy.image import debs
from deploy.image.architecture import Architecture
from deploy.image.archive import Image


def describe(image: Image, version: str, wheels: Path) -> bytes:
    """Return the document, the same bytes for the same image. `wheels` is the folder of what was unpacked."""
    itself = {
        "type": "container",
        "bom-ref": "image",
        "name": "nri-rdma",
        "version": version,
        "properties": [{"name": name, "value": value} for name, value in sorted(image.labels.items())],
    }
    components = [*_debs(image.architecture), *_wheels(wheels)]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": image.time, "component": itself},
        "components": sorted(components, key=lambda it: str(it["bom-ref"])),
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def _debs(architecture: Architecture) -> Iterator[dict[str, object]]:
    for deb in debs.locked(debs.PACKAGES, architecture):
        where = f"arch={deb.architecture}&distro=debian-13"
        yield _component(
            deb.name, deb.version, f"pkg:deb/debian/{quote(deb.name)}@{quote(deb.version)}?{where}", deb.sha256
        )


def _wheels(folder: Path) -> Iterator[dict[str, object]]:
    for path in folder.glob("*.whl"):
        name, version = path.name.split("-")[:2]
        name = name.replace("_", "-").lower()
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        yield _component(name, version, f"pkg:pypi/{name}@{quote(version)}", sha256)


def _component(name: str, version: str, address: str, sha256: str) -> dict[str, object]:
    """A package. Its address is a package URL, by which scanners know it."""
    return {
        "type": "library",
        "bom-ref": address,
        "purl": address,
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }
