"""What the guest compiled is kept, and goes back only where its source still is."""

import io
import tarfile
from pathlib import Path

import pytest

from tests.lab import bytecode


def archive(folder: Path, *names: str) -> Path:
    folder.mkdir()
    path = folder / bytecode.ARCHIVE
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return path


def test_what_two_machines_handed_out_is_kept_by_its_place(tmp_path: Path) -> None:
    bytecode.keep(archive(tmp_path / "small-1", "a/__pycache__/x.cpython-314.pyc"), tmp_path / "kept")
    bytecode.keep(archive(tmp_path / "small-2", "a/__pycache__/y.cpython-314.pyc"), tmp_path / "kept")
    (tmp_path / "checkout" / "a").mkdir(parents=True)
    for name in ("x.py", "y.py"):
        (tmp_path / "checkout" / "a" / name).touch()
    found = {str(place): path.read_text() for path, place in bytecode.kept(tmp_path / "kept", tmp_path / "checkout")}
    assert found == {f"a/__pycache__/{name}.cpython-314.pyc": f"a/__pycache__/{name}.cpython-314.pyc" for name in "xy"}


def test_what_has_no_source_any_more_stays_out(tmp_path: Path) -> None:
    bytecode.keep(archive(tmp_path / "small", "a/__pycache__/gone.cpython-314.pyc"), tmp_path / "kept")
    assert list(bytecode.kept(tmp_path / "kept", tmp_path / "checkout")) == []


@pytest.mark.parametrize("name", ["../outside.pyc", "/outside.pyc", "a/source.py"])
def test_only_bytecode_below_the_folder_is_taken(tmp_path: Path, name: str) -> None:
    bytecode.keep(archive(tmp_path / "small", name), tmp_path / "kept")
    assert list(tmp_path.rglob("*outside*")) + list(tmp_path.rglob("*source*")) == []
