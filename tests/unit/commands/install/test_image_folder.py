"""A copy of the image's folder has all of it, and its programs know where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.commands.install.image_folder import HostRelease, ImageFolder
from nri_rdma.errors import ErrorCode, NriRdmaError

PATH = "/var/lib/somewhere/nri-rdma/a"


@pytest.fixture
def copy(tmp_path: Path) -> HostRelease:
    return HostRelease(here=tmp_path / "copy", path=PATH)


def write(root: Path, copy: HostRelease) -> int:
    return ImageFolder.read(root).write(copy, beside=copy)


def test_a_copy_has_every_file_and_all_users_may_read_it(root: Path, copy: HostRelease) -> None:
    assert write(root, copy) == 7
    there = {it.relative_to(copy.here) for it in copy.here.rglob("*")}
    assert there == {it.relative_to(root) for it in root.rglob("*")}
    modes = {it.name: it.stat().st_mode & 0o777 for it in copy.here.rglob("*")}
    programs = ("nri-rdma", "nri-rdma-hook", "python3", "python3.13")
    assert {modes[it] for it in (*programs, "bin", "deep")} == {0o755}
    assert {modes[it] for it in ("libc.so.6", "module.py", "nri_rdma_hook.py")} == {0o644}


def test_programs_name_the_copy_and_nothing_else_is_changed(root: Path, copy: HostRelease) -> None:
    write(root, copy)
    assert (copy.here / "bin/nri-rdma").read_text() == f"#!{PATH}/bin/python3.13 -I\nmain()\n"
    assert (copy.here / "bin/nri-rdma-hook").read_text() == f"#!{PATH}/bin/python3 -IS\n"
    before, after = ((it / "bin/python3.13").read_bytes() for it in (root, copy.here))
    assert len(after) == len(before)
    elf, loader, folder, end = after.decode().split("\0")
    assert (elf, end) == ("\x7fELF", "end")
    assert (Path(loader), Path(folder)) == (Path(f"{PATH}/lib/ld.so"), Path(f"{PATH}/lib"))
    assert (copy.here / "lib/libc.so.6").read_bytes() == (root / "lib/libc.so.6").read_bytes()


def test_a_right_copy_has_no_difference(root: Path, copy: HostRelease) -> None:
    write(root, copy)
    assert list(ImageFolder.read(root).differing(copy)) == []


def test_a_file_where_a_folder_was_takes_its_place(root: Path, copy: HostRelease) -> None:
    write(root, copy)
    (root / "local/lib/deep/module.py").unlink()
    (root / "local/lib/deep").rmdir()
    (root / "local/lib/deep").write_text("a file")
    write(root, copy)
    assert (copy.here / "local/lib/deep").read_text() == "a file"


def test_what_the_image_has_no_more_goes(root: Path, copy: HostRelease) -> None:
    (root / "local/old/deep").mkdir(parents=True)
    (root / "local/old/deep/file").touch()
    write(root, copy)
    (root / "local/old/deep/file").unlink()
    (root / "local/old/deep").rmdir()
    (root / "local/old").rmdir()
    write(root, copy)
    assert not (copy.here / "local/old").exists()


def test_an_interpreter_that_runs_only_where_it_is_is_refused(root: Path) -> None:
    (root / "bin/python3.13").write_text("\x7fELF\0/lib64/ld.so\0")
    with pytest.raises(NriRdmaError, match="is not the interpreter of nri-rdma's image") as caught:
        ImageFolder.read(root)
    assert caught.value.code is ErrorCode.INSTALL
