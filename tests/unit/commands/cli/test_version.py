"""`nri-rdma --version` says what was installed."""

from nri_rdma import __version__
from nri_rdma.commands.cli.version import version_line


def test_the_commit_is_said_where_it_is_known() -> None:
    assert version_line("0123abcd-changed") == f"nri-rdma {__version__} (commit 0123abcd-changed)"
    assert version_line("") == f"nri-rdma {__version__}"
