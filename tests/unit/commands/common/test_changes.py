"""Files of ours are shown before they are written, and files of others stay as they are."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.common.changes import FileChange, OwnFile, carry_out_all, remove_empty, to_remove, to_write
from nri_rdma.errors import ErrorCode, NriRdmaError


def own(path: Path, text: str = "ours\nnew\n", mode: int = 0o644, **more: Any) -> OwnFile:
    return OwnFile(path=path, data=text.encode(), is_ours=lambda data: data.startswith(b"ours"), mode=mode, **more)


def test_a_file_that_is_not_there_is_shown_whole_and_written_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a/b/file"
    (change,) = to_write([own(path, mode=0o755)])
    assert change.shown() == f"--- /dev/null\n+++ {path}\n@@ -0,0 +1,2 @@\n+ours\n+new\n"
    assert not path.exists()
    change.carry_out()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("ours\nnew\n", 0o755)
    assert to_write([own(path, mode=0o755)]) == ()


def test_an_older_one_of_ours_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours\nold\n")
    (change,) = to_write([own(path)])
    assert change.shown() == f"--- {path}\n+++ {path}\n@@ -1,2 +1,2 @@\n ours\n-old\n+new\n"
    change.carry_out()
    assert path.read_text() == "ours\nnew\n"
    change.undo()
    assert path.read_text() == "ours\nold\n"


def test_a_mode_that_was_changed_is_set_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours\nnew\n")
    path.chmod(0o600)
    (change,) = to_write([own(path)])
    assert change.shown() == f"--- {path}\n+++ {path}\n"
    change.carry_out()
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_lines_of_a_copy_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (change,) = to_write([own(path, copy_of=Path("/opt/hook"))])
    assert change.shown() == f"--- /dev/null\n+++ {path}\n(a copy of /opt/hook, 2 lines)\n"


@pytest.mark.parametrize("other", ["file", "link", "folder"])
def test_what_somebody_else_made_is_neither_written_nor_removed(tmp_path: Path, other: str) -> None:
    path = tmp_path / "file"
    if other == "file":
        path.write_text("theirs\n")
    elif other == "link":
        (tmp_path / "target").write_text("ours\n")
        path.symlink_to("target")
    else:
        path.mkdir()
    for decide in (to_write, to_remove):
        with pytest.raises(NriRdmaError) as caught:
            decide([own(path)])
        assert caught.value.code is ErrorCode.INSTALL
        assert str(path) in str(caught.value)


def test_a_removal_is_shown_and_can_be_undone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ours\nold\n")
    path.chmod(0o600)
    (change,) = to_remove([own(path), own(tmp_path / "absent")])
    assert change.shown() == f"--- {path}\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-ours\n-old\n"
    change.carry_out()
    assert not path.exists()
    change.undo()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("ours\nold\n", 0o600)


@pytest.mark.parametrize("fault", ["check", "file"])
def test_all_is_done_or_nothing(tmp_path: Path, fault: str) -> None:
    (tmp_path / "old").write_text("ours\nold\n")
    (tmp_path / "blocked").touch()
    last = tmp_path / ("blocked/file" if fault == "file" else "last")

    def check() -> None:
        assert fault == "check"
        assert last.exists()
        raise NriRdmaError(ErrorCode.INSTALL, "podman cannot read it")

    changes = [*to_write([own(tmp_path / "old"), own(tmp_path / "new")]), FileChange(file=own(last), before=None)]
    with pytest.raises((NriRdmaError, OSError)):
        carry_out_all(changes, check)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["blocked", "old"]
    assert (tmp_path / "old").read_text() == "ours\nold\n"
    carry_out_all(changes[:2])
    assert (tmp_path / "new").read_text() == "ours\nnew\n"


def test_what_cannot_be_undone_is_named_and_keeps_nothing_else_from_it(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    files = [own(tmp_path / "first"), own(tmp_path / "gone/second"), own(tmp_path / "last")]

    def check() -> None:
        (tmp_path / "gone/second").unlink()
        (tmp_path / "gone").rmdir()
        (tmp_path / "gone").write_text("a file")
        raise OSError(errno.EIO, "the check failed")

    with pytest.raises(NriRdmaError, match=r"the check failed; after that, these .*gone/second \(Not a directory\)"):
        carry_out_all(to_write(files), check)
    assert [it.name for it in tmp_path.iterdir()] == ["gone"]


def test_a_folder_is_removed_only_when_it_is_empty(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "theirs").touch()
    remove_empty(folder)
    assert folder.is_dir()
    (folder / "theirs").unlink()
    remove_empty(folder)
    remove_empty(folder)
    assert not folder.exists()


def module(folder: Path, word: str) -> OwnFile:
    """A module that tells a word; all words have one length."""
    assert len(word) == 5
    return own(folder / "words.py", f"ours = {word!r}\n", is_module=True)


def told(folder: Path) -> str:
    """The word that a new Python imports, which keeps the compiled code."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import words; print(words.ours)"
    done = subprocess.run([sys.executable, "-IS", "-c", code, folder], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def in_one_second(file: OwnFile) -> None:
    """Have the file be written in the same second as every other one of this test."""
    os.utime(file.path, (1_000_000_000, 1_000_000_000))


@pytest.mark.parametrize("how", ["written", "undone"])
def test_no_compiled_code_of_a_content_before_is_used(tmp_path: Path, how: str) -> None:
    """Python tells contents by their size and the second in which they were written."""
    older, newer = module(tmp_path, "older"), module(tmp_path, "newer")
    (change,) = to_write([older])
    change.carry_out()
    in_one_second(older)
    assert told(tmp_path) == "older"
    (change,) = to_write([newer])
    change.carry_out()
    in_one_second(newer)
    assert told(tmp_path) == "newer"
    if how == "undone":
        change.undo()
        in_one_second(older)
        assert told(tmp_path) == "older"


def test_a_module_is_removed_with_its_compiled_code_and_nothing_else(tmp_path: Path) -> None:
    file = module(tmp_path, "older")
    carry_out_all(to_write([file]))
    told(tmp_path)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    cut, theirs = compiled.with_name(f"{compiled.name}.140"), compiled.with_name(f"other.{compiled.name}")
    for path in (cut, theirs):
        path.touch()
    (change,) = to_remove([file])
    shown = "".join(f"--- {path}\n+++ /dev/null\n" for path in (compiled, cut))
    assert change.shown() == f"--- {file.path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-ours = 'older'\n{shown}"
    change.carry_out()
    assert [*tmp_path.rglob("*")] == [theirs.parent, theirs]
    assert to_remove([file]) == ()


def test_compiled_code_alone_is_removed_with_its_folder(tmp_path: Path) -> None:
    file = module(tmp_path, "older")
    carry_out_all(to_write([file]))
    told(tmp_path)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    file.path.unlink()
    (change,) = to_remove([file])
    assert change.shown() == f"--- {compiled}\n+++ /dev/null\n"
    change.carry_out()
    assert [*tmp_path.iterdir()] == []


def test_compiled_code_that_cannot_be_removed_undoes_the_change(tmp_path: Path) -> None:
    carry_out_all(to_write([module(tmp_path, "older")]))
    (tmp_path / "__pycache__/words.x.pyc").mkdir(parents=True)
    with pytest.raises(OSError):
        carry_out_all(to_write([module(tmp_path, "newer")]))
    assert (tmp_path / "words.py").read_text() == "ours = 'older'\n"


def test_of_what_is_no_module_nothing_else_is_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "__pycache__/file.x.pyc"
    theirs.parent.mkdir()
    theirs.touch()
    carry_out_all(to_write([own(tmp_path / "file")]))
    assert theirs.exists()


def foreign(folder: Path, how: str) -> None:
    """Make a folder in which somebody else than root may replace files."""
    if how == "link":
        (folder.parent / "theirs").mkdir(parents=True)
        os.chown(folder.parent / "theirs", 65534, 65534)
        folder.symlink_to("theirs")
        return
    folder.mkdir(parents=True)
    if how == "owner":
        os.chown(folder, 65534, 65534)
    else:
        folder.chmod(0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
@pytest.mark.parametrize("below", ["file", "docker/file"])
def test_nothing_is_installed_where_others_than_root_could_replace_it(tmp_path: Path, how: str, below: str) -> None:
    folder = tmp_path / "lib/nri-rdma"
    foreign(folder, how)
    for decide in (to_write, to_remove):
        with pytest.raises(NriRdmaError) as caught:
            decide([own(folder / below)])
        assert caught.value.code is ErrorCode.INSTALL
        assert str(folder) in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_compiled_code_that_others_could_replace_is_refused_and_no_link_is_followed(tmp_path: Path, how: str) -> None:
    foreign(tmp_path / "__pycache__", how)
    (tmp_path / "__pycache__/module.cpython-311.pyc").write_text("kept")
    with pytest.raises(NriRdmaError) as caught:
        to_write([own(tmp_path / "module.py", is_module=True)])
    assert "__pycache__" in str(caught.value)
    assert (tmp_path / "__pycache__/module.cpython-311.pyc").read_text() == "kept"


def test_compiled_code_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/module.cpython-311.pyc").write_text("kept")
    (tmp_path / "__pycache__").symlink_to("elsewhere")
    with pytest.raises(NriRdmaError) as caught:
        to_write([own(tmp_path / "module.py", is_module=True)])
    assert "__pycache__ is a link" in str(caught.value)
    assert (tmp_path / "elsewhere/module.cpython-311.pyc").exists()
