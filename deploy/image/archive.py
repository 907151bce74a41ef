"""An OCI archive whose bytes depend on nothing but the files: names sorted, one time, no owners."""

import hashlib
import io
import json
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.image.architecture import Architecture
from deploy.image.steps import ImageError

_OCI = "application/vnd.oci.image"
_COMPRESS = "import gzip, sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read(), 6, mtime=0))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Some of the image's files, as they are sent."""

    diff_id: str
    """Of what the layer is unpacked."""
    packed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image says of itself."""

    architecture: Architecture
    created: int
    """Seconds since 1970."""
    layers: tuple[Layer, ...]
    labels: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[str, ...]

    @property
    def time(self) -> str:
        """When it was made."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created))


def pack(root: Path, paths: Iterable[Path], python: Path) -> Layer:
    """Return a layer with these files. `python` compresses: of another zlib the bytes may differ."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(paths):
            entry = _entry(path, root)
            archive.addfile(entry, io.BytesIO(path.read_bytes()) if entry.isreg() else None)
    done = subprocess.run(
        [str(python), "-I", "-c", _COMPRESS], input=buffer.getvalue(), capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ImageError(
            f"could not compress a layer: {done.stderr.decode(errors='replace')}. Next: see the free memory."
        )
    return Layer(diff_id=_digest(buffer.getvalue()), packed=done.stdout)


def write_archive(target: Path, name: str, images: Sequence[Image]) -> str:
    """Write what `ctr images import`, skopeo and podman take: one image, or the same one for several architectures.
    Return the digest by which the name is known."""
    blobs: dict[str, bytes] = {}

    def add(media_type: str, blob: bytes) -> dict[str, object]:
        blobs[_digest(blob)] = blob
        return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}

    manifests = [_add_image(image, add) for image in images]
    named = manifests[0] if len(manifests) == 1 else add(f"{_OCI}.index.v1+json", _index(manifests))
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _index([named | {"annotations": annotations}]),
        **{f"blobs/{digest.replace(':', '/')}": blob for digest, blob in blobs.items()},
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(named["digest"])


def _add_image(image: Image, add: Callable[[str, bytes], dict[str, object]]) -> dict[str, object]:
    """Add the blobs of an image, and return what an index says of it."""
    platform = {"architecture": image.architecture.name, "os": "linux"}
    config = {
        **platform,
        "created": image.time,
        "config": {
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "Env": image.environment,
            "Labels": image.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": add(f"{_OCI}.config.v1+json", _json(config)),
        "layers": [add(f"{_OCI}.layer.v1.tar+gzip", layer.packed) for layer in image.layers],
    }
    return add(f"{_OCI}.manifest.v1+json", _json(manifest)) | {"platform": platform}


def _index(manifests: Sequence[Mapping[str, object]]) -> bytes:
    return _json({"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": manifests})


def _entry(path: Path, root: Path) -> tarfile.TarInfo:
    status = path.lstat()
    info = tarfile.TarInfo(str(path.relative_to(root)))
    info.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
    elif stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if info.name == "tmp" else 0o755
    else:
        info.size = status.st_size
    return info


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
