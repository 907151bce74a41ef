"""An archive's bytes depend on its files alone, and runtimes find their way in it."""

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

from deploy.image.architecture import AMD64, ARM64, Architecture
from deploy.image.archive import Image, pack, write_archive


def make_archive(folder: Path, time: int, *architectures: Architecture) -> Path:
    """Write an archive of a few files that were changed at this time."""
    root = folder / "root"
    (root / "bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "bin/x").write_text("x")
    (root / "bin/x").chmod(0o700)
    (root / "bin/y").symlink_to("x")
    os.utime(root / "bin/x", (time, time))
    layer = pack(root, root.rglob("*"), Path(sys.executable))
    images = [
        Image(
            architecture=it,
            created=1_700_000_000,
            layers=(layer,),
            labels={"a": "b"},
            entrypoint=("/bin/x",),
            command=("run",),
            environment=("PATH=/bin",),
        )
        for it in architectures
    ]
    write_archive(folder / "x.tar", "localhost/x:1", images)
    return folder / "x.tar"


def read_json(archive: tarfile.TarFile, name: str) -> Any:
    """Read a file of the archive."""
    found = archive.extractfile(name)
    assert found is not None
    return json.load(found)


def test_neither_time_nor_folder_changes_a_byte(tmp_path: Path) -> None:
    first, second = (make_archive(tmp_path / name, time, ARM64) for name, time in (("a", 1), ("longer", 2)))
    assert first.read_bytes() == second.read_bytes()


def test_its_index_leads_to_the_files(tmp_path: Path) -> None:
    with tarfile.open(make_archive(tmp_path, 1, ARM64)) as archive:
        (entry,) = read_json(archive, "index.json")["manifests"]
        assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
        manifest = read_json(archive, f"blobs/{entry['digest'].replace(':', '/')}")
        config = read_json(archive, f"blobs/{manifest['config']['digest'].replace(':', '/')}")
        assert (config["created"], config["config"]["Labels"]) == ("2023-11-14T22:13:20Z", {"a": "b"})
        (layer,) = manifest["layers"]
        packed = archive.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")
        with tarfile.open(fileobj=packed, mode="r:gz") as files:
            found = [(it.name, oct(it.mode), it.uid, it.mtime) for it in files]
    assert found == [
        ("bin", "0o755", 0, 0),
        ("bin/x", "0o755", 0, 0),
        ("bin/y", "0o777", 0, 0),
        ("tmp", "0o1777", 0, 0),
    ]


def test_images_of_two_architectures_have_one_name(tmp_path: Path) -> None:
    with tarfile.open(make_archive(tmp_path, 1, AMD64, ARM64)) as archive:
        (entry,) = read_json(archive, "index.json")["manifests"]
        assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"
        assert entry["mediaType"] == "application/vnd.oci.image.index.v1+json"
        found = read_json(archive, f"blobs/{entry['digest'].replace(':', '/')}")["manifests"]
        assert [it["platform"]["architecture"] for it in found] == ["amd64", "arm64"]
        assert len(archive.getnames()) == len(set(archive.getnames())) == 2 + 1 + 2 * 2 + 1  # they share their layer
