"""An OCI image made of busybox alone, the pause image and the workload of every pod of the rig."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

IMAGE = "localhost/pause:1"
_APPLETS = (
    "sh sleep ls cat ip id env stat dd mknod echo test true false readlink ping nc grep wc head kill ps mount mkdir rm "
    "touch tr cut hostname"
)
_FOLDERS = ("bin", "dev", "proc", "sys", "tmp", "etc", "run")
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def write_image(busybox: Path, target: Path) -> None:
    """Writes the OCI layout tar that `ctr images import` takes."""
    layer = _layer(busybox.read_bytes())
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "1000000000"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "config": _descriptor(_CONFIG_TYPE, config),
            "layers": [_descriptor(_LAYER_TYPE, layer)],
        }
    )
    names = {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": IMAGE.rpartition(":")[2]}
    index = _json({"schemaVersion": 2, "manifests": [_descriptor(_MANIFEST_TYPE, manifest) | {"annotations": names}]})
    with tarfile.open(target, mode="w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (layer, config, manifest):
            _add(tar, f"blobs/{_digest(blob).replace(':', '/')}", blob)


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in _FOLDERS:
            info = tarfile.TarInfo(folder)
            info.type = tarfile.DIRTYPE
            info.mode = 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        _add(tar, "bin/busybox", busybox, mode=0o755)
        for applet in _APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type = tarfile.SYMTYPE
            link.linkname = "busybox"
            tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = mode
    tar.addfile(info, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
