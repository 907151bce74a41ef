"""Commands have the settings of the daemon that systemd starts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nri_rdma.commands.common import unit_environment
from nri_rdma.commands.common.options import settings_options
from nri_rdma.config.settings import Settings


@click.command()
@settings_options("annotation_prefix", "state_dir")
def shown(settings: Settings) -> None:
    click.echo(f"{settings.annotation_prefix} {settings.state_dir}")


def test_a_command_has_what_the_units_environment_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "environment"
    prefix, folder = "NRI_RDMA_ANNOTATION_PREFIX=rdma.acme.com", "NRI_RDMA_STATE_DIR='/run/acme'"
    file.write_text(f"# settings\n{prefix}\n{folder}\nOTEL_TRACES_EXPORTER=otlp\n")
    monkeypatch.setattr(unit_environment, "UNIT_ENVIRONMENT", file)
    assert CliRunner().invoke(shown).output == "rdma.acme.com /run/acme\n"
    own = {"NRI_RDMA_STATE_DIR": "/run/mine"}
    assert CliRunner().invoke(shown, env=own).output == "rdma.acme.com /run/mine\n"
    assert CliRunner().invoke(shown, ["--annotation-prefix", "a.b"]).output == "a.b /run/acme\n"
    assert "OTEL_TRACES_EXPORTER" not in unit_environment.environment()
    file.unlink()
    assert CliRunner().invoke(shown).output == f"{Settings().annotation_prefix} {Settings().state_dir}\n"
