"""Images in the OCI image layout, made of files at hand: what `ctr images import` takes where there is no registry."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The files of one image layer, by path without the leading slash."""

    files: Mapping[str, bytes]
    links: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


def oci_archive(name: str, layer: Layer, config: Mapping[str, object]) -> bytes:
    """An image with one layer, in the OCI image layout."""
    blob = _tar(layer)
    description = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(blob)}"]},
        }
    )
    oci = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": _descriptor(f"{oci}.config.v1+json", description),
            "layers": [_descriptor(f"{oci}.layer.v1.tar", blob)],
        }
    )
    entry = _descriptor(f"{oci}.manifest.v1+json", manifest)
    entry["annotations"] = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    files |= {f"blobs/sha256/{_digest(data)}": data for data in (blob, description, manifest)}
    return _tar(Layer(files=files))


def _tar(layer: Layer) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in layer.folders:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        for name, target in layer.links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for name, data in layer.files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{_digest(data)}", "size": len(data)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
