"""The doctor finds the file that the runtime sends to a daemon it has started, as NRI looks for it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.commands.common.sent_config import sent_config


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return made_in(tmp_path)


def made_in(place: Path) -> Path:
    """A host whose runtime starts nri-rdma, and another plugin."""
    for folder in ("opt/nri/plugins", "opt/nri-rdma/bin", "etc/nri/conf.d", "etc/containerd", "etc/crio"):
        (place / folder).mkdir(parents=True)
    for program in ("opt/nri-rdma/bin/nri-rdma", "opt/nri/plugins/10-other"):
        (place / program).touch(0o755)
    (place / "opt/nri/plugins/90-nri-rdma").symlink_to(place / "opt/nri-rdma/bin/nri-rdma")
    (place / "etc/nri/conf.d/10-other.conf").write_text("x = 1\n")
    return place


def write(host: Path, path: str, text: str = "allow_default_pool = true\n") -> Path:
    (host / path).write_text(text)
    return host / path


def test_the_file_with_the_index_comes_before_the_one_without(host: Path) -> None:
    assert sent_config(host / "etc") is None
    plain = write(host, "etc/nri/conf.d/nri-rdma.conf")
    assert sent_config(host / "etc") == plain
    numbered = write(host, "etc/nri/conf.d/90-nri-rdma.conf")
    assert sent_config(host / "etc") == numbered


def test_a_file_that_says_nothing_is_as_none_because_the_daemon_then_reads_the_usual_one(host: Path) -> None:
    write(host, "etc/nri/conf.d/nri-rdma.conf")
    write(host, "etc/nri/conf.d/90-nri-rdma.conf", " \n")
    assert sent_config(host / "etc") is None


def test_a_link_of_another_name_counts_by_what_it_leads_to(host: Path) -> None:
    plugins = host / "opt/nri/plugins"
    (plugins / "90-nri-rdma").rename(plugins / "42-rails")
    file = write(host, "etc/nri/conf.d/42-rails.conf")
    assert sent_config(host / "etc") == file


def test_without_the_plugin_its_file_is_not_sent(host: Path) -> None:
    write(host, "etc/nri/conf.d/90-nri-rdma.conf")
    (host / "opt/nri-rdma/bin/nri-rdma").chmod(0o644)
    assert sent_config(host / "etc") is None
    (host / "opt/nri/plugins/90-nri-rdma").unlink()
    assert sent_config(host / "etc") is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "etc/containerd/config.toml",
            '[plugins."io.containerd.nri.v1.nri"]\nplugin_path = "{0}/mine"\nplugin_config_path = "{0}/conf"\n',
        ),
        ("etc/crio/crio.conf", '[crio.nri]\nnri_plugin_dir = "{0}/mine"\nnri_plugin_config_dir = "{0}/conf"\n'),
    ],
)
def test_folders_that_the_runtime_is_told_count(host: Path, file: str, text: str) -> None:
    (host / "opt/nri/plugins").rename(host / "mine")
    (host / "conf").mkdir()
    write(host, file, text.format(host))
    sent = write(host, "conf/90-nri-rdma.conf")
    assert sent_config(host / "etc") == sent


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes another user")
def test_a_folder_that_this_user_may_not_read_is_as_none() -> None:
    with TemporaryDirectory() as folder:  # unlike tmp_path, below no folder that is root's alone
        host = made_in(Path(folder))
        host.chmod(0o755)
        write(host, "etc/nri/conf.d/90-nri-rdma.conf")
        (host / "etc/nri/conf.d").chmod(0o700)
        os.seteuid(65534)
        try:
            assert sent_config(host / "etc") is None
        finally:
            os.seteuid(0)
