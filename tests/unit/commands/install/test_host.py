"""The image's folder on a host: two releases and links; the real image's is in tests/image."""

from __future__ import annotations

import resource
import subprocess
import threading
from pathlib import Path

import pytest

from nri_rdma.commands.install.host import LONGEST, HostFolder
from nri_rdma.errors import ErrorCode, NriRdmaError

PATH = "/var/lib/somewhere/nri-rdma"


@pytest.fixture
def host(tmp_path: Path) -> HostFolder:
    (tmp_path / "host").mkdir(mode=0o755)
    return HostFolder(here=tmp_path / "host", path=PATH)


def content(folder: Path) -> dict[str, str | bytes]:
    """What is below a folder, through the links of its top."""
    return {
        str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for top in folder.iterdir()
        for path in top.resolve().rglob("*")
        if path.is_symlink() or path.is_file()
    }


def of_release(host: HostFolder) -> str:
    return str((host.here / "bin").readlink().parent)


def test_the_same_release_is_not_written_again(host: HostFolder, root: Path) -> None:
    host.place(root)
    assert host.place(root) == 0
    assert of_release(host) == "a"


def test_another_release_writes_what_differs_and_the_way_back_nothing(host: HostFolder, root: Path) -> None:
    host.place(root)
    (root / "local/lib/deep/module.py").write_text("more\n")
    assert host.place(root) == 7
    assert of_release(host) == "b"
    linked = [it.name for it in (host.here / "b").rglob("*") if it.is_file() and it.stat().st_nlink == 2]
    assert sorted(linked) == ["libc.so.6", "nri_rdma_hook.py"]
    (root / "local/lib/deep/module.py").write_text("pass\n")
    assert host.place(root) == 0
    assert of_release(host) == "a"


def test_what_runs_of_the_release_before_keeps_its_files(host: HostFolder, root: Path) -> None:
    (root / "local/lib/old.py").touch()
    host.place(root)
    before = (host.here / "bin").resolve()
    (root / "local/lib/old.py").unlink()
    host.place(root)
    assert (before.parent / "local/lib/old.py").exists()
    assert not (host.here / "local/lib/old.py").exists()


def test_of_the_release_before_that_nothing_stays(host: HostFolder, root: Path) -> None:
    (root / "share/old").mkdir(parents=True)
    (root / "share/old/file").touch()
    host.place(root)
    for folder in ("share/old/file", "share/old", "share"):
        (root / folder).unlink() if (root / folder).is_file() else (root / folder).rmdir()
    host.place(root)
    assert not (host.here / "share").is_symlink()
    (root / "bin/new").touch()
    host.place(root)
    assert of_release(host) == "a"
    assert content(host.here / "a").keys() == content(root).keys()


def test_a_file_that_was_damaged_there_is_made_good(host: HostFolder, root: Path) -> None:
    host.place(root)
    (host.here / "bin/nri_rdma_hook.py").write_text("")
    assert host.place(root) > 0
    assert (host.here / "bin/nri_rdma_hook.py").read_text() == "def main(): ...\n"


def test_a_copy_can_be_copied(host: HostFolder, root: Path, tmp_path: Path) -> None:
    """The folder of a host is a source, too: its programs know another path then."""
    on_itself = HostFolder(here=host.here, path=str(host.here))
    on_itself.place(root)
    (tmp_path / "further").mkdir(mode=0o755)
    HostFolder(here=tmp_path / "further", path=PATH).place(host.here / "a")
    host.remove()
    host.place(root)
    assert content(tmp_path / "further/a") == content(host.here / "a")


def test_what_is_not_ours_stays_when_ours_is_removed(host: HostFolder, root: Path) -> None:
    (host.here / "theirs").touch()
    host.place(root)
    assert host.remove()
    assert [it.name for it in host.here.iterdir()] == ["theirs"]
    assert not host.remove()


def assert_refused(host: HostFolder, root: Path, words: str) -> None:
    before = sorted(host.here.iterdir()) if host.here.exists() else []
    with pytest.raises(NriRdmaError) as caught:
        host.place(root)
    assert caught.value.code is ErrorCode.INSTALL
    assert words in str(caught.value)
    assert "Next: " in str(caught.value)
    assert before == (sorted(host.here.iterdir()) if host.here.exists() else [])


@pytest.mark.parametrize("path", ["opt/nri-rdma", "/opt/../nri-rdma", "/opt/nri rdma", "/opt/nri-rdma/", "/a:b", "/"])
def test_a_path_that_programs_cannot_have_is_refused(host: HostFolder, root: Path, path: str) -> None:
    assert_refused(HostFolder(here=host.here, path=path), root, "not absolute, or has other characters than letters")


def test_a_path_without_room_in_a_first_line_is_refused(host: HostFolder, root: Path) -> None:
    fits = "/" + "x" * (LONGEST - 1)
    assert_refused(HostFolder(here=host.here, path=f"{fits}x"), root, "has 101 characters: 100 fit")
    HostFolder(here=host.here, path=fits).place(root)
    first = (host.here / "bin/nri-rdma").read_bytes().splitlines()[0]
    assert len(first) <= 127


def test_a_folder_that_is_not_there_is_named(host: HostFolder, root: Path) -> None:
    assert_refused(HostFolder(here=host.here / "away", path=PATH), root, f"No such file or directory: {host.here}/away")


def test_programs_that_are_not_ours_are_not_replaced(host: HostFolder, root: Path) -> None:
    (host.here / "bin").mkdir()
    assert_refused(host, root, "the folder has a bin that is not ours")


def test_a_folder_that_others_may_write_is_refused(host: HostFolder, root: Path) -> None:
    host.here.chmod(0o777)
    assert_refused(host, root, "others than root may replace files")


def test_a_disk_that_is_full_leaves_the_release_that_was_there(host: HostFolder, root: Path) -> None:
    host.place(root)
    before = content(host.here / "a")
    (root / "lib/libc.so.6").write_bytes(b"x" * 100_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # of one file, which is the nearest to a full disk
    try:
        with pytest.raises(NriRdmaError, match="the folder cannot be written: File too large"):
            host.place(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (of_release(host), content(host.here / "a")) == ("a", before)
    host.place(root)
    assert (of_release(host), content(host.here / "b").keys()) == ("b", before.keys())


def test_two_at_once_wait_for_each_other(host: HostFolder, root: Path) -> None:
    command = ["flock", str(host.here), "sh", "-c", "echo held; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        placed: list[int] = []
        thread = threading.Thread(target=lambda: placed.append(host.place(root)))
        thread.start()
        thread.join(0.3)
        assert placed == []
        other.communicate(b"\n")
        thread.join(10)
    assert placed == [7]
