"""Commands have the settings of the daemon that systemd starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.commands.common import unit_environment
from nri_rdma.commands.common.unit_environment import daemon_environment
from tests.unit.commands.cli.program import nri_rdma

TEXT = """\
# settings
; of the unit
NRI_RDMA_ANNOTATION_PREFIX=rdma.acme.com
NRI_RDMA_STATE_DIR = "/run/acme"
NRI_RDMA_LOG_LEVEL=bogus
OTEL_TRACES_EXPORTER=otlp
"""


NAMES = ("NRI_RDMA_ANNOTATION_PREFIX", "NRI_RDMA_STATE_DIR", "NRI_RDMA_LOG_LEVEL", "OTEL_TRACES_EXPORTER")


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file, on a host that has the unit."""
    unit = tmp_path / "nri-rdma.service"
    unit.touch()
    monkeypatch.setattr(unit_environment, "UNITS", (unit,))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / unit_environment.FILE
    file.parent.mkdir()
    file.write_text(TEXT)
    return tmp_path


def ours(etc: Path) -> dict[str, str]:
    return {name: value for name, value in daemon_environment(etc).items() if name in NAMES}


def test_settings_that_the_daemon_uses_are_those_of_commands(etc: Path) -> None:
    assert ours(etc) == {"NRI_RDMA_ANNOTATION_PREFIX": "rdma.acme.com", "NRI_RDMA_STATE_DIR": "/run/acme"}


def test_a_variable_of_the_shell_comes_first(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRI_RDMA_STATE_DIR", "/run/mine")
    assert ours(etc)["NRI_RDMA_STATE_DIR"] == "/run/mine"


def test_without_the_unit_its_file_is_nobodys(etc: Path) -> None:
    (etc / "nri-rdma.service").unlink()
    assert ours(etc) == {}


def test_without_the_file_there_are_none(etc: Path) -> None:
    (etc / unit_environment.FILE).unlink()
    assert ours(etc) == {}


def test_a_command_takes_them(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_rdma.commands.common.options.daemon_environment", lambda: daemon_environment(etc))
    shown = nri_rdma("config", "show", columns=200)
    assert shown.returncode == 0
    assert "rdma.acme.com" in shown.stdout
