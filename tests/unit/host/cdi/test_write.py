"""The file of a spec: its text, and that it is there whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import Device, Edits, Kind, Spec, Version
from nri_rdma.errors import CdiError
from nri_rdma.host.cdi.write import remove_own_spec, write_own_spec, write_spec

KIND = Kind(vendor="vendor.example", device_class="nic")


def spec(*names: str) -> Spec:
    devices = tuple(Device(name=name, edits=Edits(env=(f"NAME={name}",))) for name in names)
    return Spec(version=Version.V0_3_0, kind=KIND, devices=devices)


def test_the_text_is_the_least_that_says_it() -> None:
    assert encode(spec("a")).decode() == (
        '{\n  "cdiVersion": "0.3.0",\n  "kind": "vendor.example/nic",\n  "devices": [\n    {\n      "name": "a",\n'
        '      "containerEdits": {\n        "env": [\n          "NAME=a"\n        ]\n      }\n    }\n  ]\n}\n'
    )


def test_characters_that_yaml_does_not_take_are_escaped_and_others_not() -> None:
    text = "A=\x7f\x80\x85\u2028\ufeffä😀\x1b"
    odd = Spec(version=Version.V0_3_0, kind=KIND, devices=(Device(name="a", edits=Edits(env=(text,))),))
    assert '"A=\\u007f\\u0080\\u0085\\u2028\\ufeffä😀\\u001b"' in encode(odd).decode()
    assert parse(encode(odd), "FILE") == odd


def test_file_and_directory_can_be_read_by_everybody(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        path = write_spec(spec("a"), tmp_path / "etc/cdi", "a.json")
    finally:
        os.umask(before)
    assert path == tmp_path / "etc/cdi/a.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_bytes() == encode(spec("a"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_an_older_file_is_replaced(tmp_path: Path) -> None:
    write_spec(spec("a"), tmp_path, "a.json")
    inode = (tmp_path / "a.json").stat().st_ino
    write_spec(spec("b"), tmp_path, "a.json")
    assert (tmp_path / "a.json").read_bytes() == encode(spec("b"))
    assert (tmp_path / "a.json").stat().st_ino != inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_link_in_the_files_place_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "a.json").symlink_to("other")
    write_spec(spec("a"), tmp_path, "a.json")
    assert not (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "other").read_text() == "kept"


@pytest.mark.parametrize("failing", ["fsync", "fdopen", "fchmod"])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    write_spec(spec("a"), tmp_path, "a.json")

    def no_space(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"nri_rdma.host.whole_file.os.{failing}", no_space)
    with pytest.raises(OSError, match="No space"):
        write_spec(spec("b"), tmp_path, "a.json")
    assert (tmp_path / "a.json").read_bytes() == encode(spec("a"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_what_a_dead_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".a.json.{os.getpid()}.tmp").write_text("half")
    write_spec(spec("a"), tmp_path, "a.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_the_text_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool]] = []
    sync = os.fsync

    def told_sync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        told.append((kind, (tmp_path / "a.json").exists()))
        sync(descriptor)

    monkeypatch.setattr("nri_rdma.host.whole_file.os.fsync", told_sync)
    write_spec(spec("a"), tmp_path, "a.json")
    assert told == [("file", False), ("directory", True)]


def test_a_spec_of_the_daemons_own_that_cannot_be_written_says_where_and_what_next(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(CdiError) as refused:
        write_own_spec(spec("a"), tmp_path / "cdi", "a.json")
    assert str(refused.value) == (
        f"nri-rdma: CDI-FILE: the CDI spec cannot be written: File exists, {tmp_path}/cdi/a.json. Next: let the daemon"
        f" write into {tmp_path}/cdi: in a container mount hostPath {tmp_path}/cdi there, writable."
    )


def test_a_spec_of_the_daemons_own_is_removed_once(tmp_path: Path) -> None:
    write_own_spec(spec("a"), tmp_path, "a.json")
    assert [remove_own_spec(tmp_path, "a.json"), remove_own_spec(tmp_path, "a.json")] == [True, False]


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
TRIES = """\
import pathlib, sys
from nri_rdma.cdi.spec import Kind, Spec, Version
from nri_rdma.errors import CdiError
from nri_rdma.host.cdi.write import remove_own_spec, write_own_spec
folder, kind = pathlib.Path(sys.argv[1]), Kind(vendor="vendor.example", device_class="nic")
spec = Spec(version=Version.V0_3_0, kind=kind, devices=())
print(remove_own_spec(folder, "b.json"))
for work in (lambda: write_own_spec(spec, folder, "b.json"), lambda: remove_own_spec(folder, "a.json")):
    try:
        work()
    except CdiError as error:
        print(error.what)
"""


@pytest.mark.root
def test_a_read_only_folder_is_told_and_what_it_does_not_have_is_no_error(tmp_path: Path) -> None:
    write_own_spec(spec("a"), tmp_path, "a.json")
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(tmp_path), sys.executable, "-c", TRIES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "False",
        "the CDI spec cannot be written: Read-only file system",
        "the CDI spec cannot be removed: Read-only file system",
    ]
