"""`nri-rdma --version` says what was installed."""

from pathlib import Path

from nri_rdma import __version__
from nri_rdma.commands.cli.version import REVISION, version_line


def test_an_image_says_which_commit_it_was_made_of(tmp_path: Path) -> None:
    (tmp_path / REVISION).write_text("0123abcd-changed\n")
    assert version_line(tmp_path) == f"nri-rdma {__version__} (commit 0123abcd-changed)"


def test_what_pip_installed_says_its_version_alone(tmp_path: Path) -> None:
    assert version_line(tmp_path) == f"nri-rdma {__version__}"
