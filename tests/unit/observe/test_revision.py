"""The commit of an image or a wheel is in a file of the package."""

from pathlib import Path

from nri_rdma.observe.revision import FILE, revision


def test_the_file_says_the_commit(tmp_path: Path) -> None:
    assert revision(tmp_path) == ""
    (tmp_path / FILE).write_text("0123abcd\n")
    assert revision(tmp_path) == "0123abcd"
