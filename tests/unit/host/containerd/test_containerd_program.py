"""containerd's program: which release it is, its configuration, and the one that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.containerd.containerd_program import (
    DEFAULT_CONFIG,
    ContainerdProgram,
    config_in,
    find_containerd,
    running_configs,
)


def program(folder: Path, script: str) -> ContainerdProgram:
    path = folder / "containerd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return ContainerdProgram(program=str(path))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+deb13u1", (1, 7)),
        ("containerd github.com/containerd/containerd/v2 2.1.9+unknown ", (2, 1)),
        ("containerd github.com/containerd/containerd/v2 v2.3.7 ", (2, 3)),
        ("containerd github.com/k3s-io/containerd v2.0.5-k3s1 1a2b", (2, 0)),
    ],
)
def test_a_release_is_told_by_its_version(tmp_path: Path, text: str, version: tuple[int, int]) -> None:
    assert program(tmp_path, f"echo '{text}'").version() == version


def test_what_is_no_version_and_no_configuration_is_told(tmp_path: Path) -> None:
    for script, ask in (("echo 7", ContainerdProgram.version), ("echo x =", ContainerdProgram.configuration)):
        with pytest.raises(NriRdmaError) as caught:
            ask(program(tmp_path, script))
        assert caught.value.code is ErrorCode.INSTALL
    with pytest.raises(NriRdmaError, match="broken"):
        program(tmp_path, "echo broken >&2; exit 1").configuration()


def test_ctr_is_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ctr").write_text('#!/bin/sh\necho "beside $*"\n')
    (tmp_path / "ctr").chmod(0o755)
    assert program(tmp_path, "").oci_spec() == "beside oci spec\n"


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["containerd"], DEFAULT_CONFIG),
        (["containerd", "--log-level", "info", "--config", "/a.toml"], Path("/a.toml")),
        (["containerd", "-c", "/a.toml", "-a", "/x.sock"], Path("/a.toml")),
        (["containerd", "-config=/a.toml"], Path("/a.toml")),
    ],
)
def test_the_configuration_is_the_one_of_the_command_line(arguments: list[str], config: Path) -> None:
    assert config_in(arguments) == config


def test_the_one_that_runs_is_known_by_its_process(tmp_path: Path) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "exe").symlink_to("/var/lib/rancher/k3s/data/current/bin/containerd")
    (process / "cmdline").write_bytes(b"containerd\0-c\0/etc/../etc/k3s.toml\0")
    (process / "cgroup").write_text("0::/system.slice/k3s.service\n")
    found = find_containerd(7, None, tmp_path)
    assert (found.program, found.config) == ("/var/lib/rancher/k3s/data/current/bin/containerd", Path("/etc/k3s.toml"))
    assert found.unit == "k3s"
    assert find_containerd(7, Path("/b.toml"), tmp_path).config == Path("/b.toml")
    (process / "cgroup").write_text("0::/init.scope\n")
    assert find_containerd(7, None, tmp_path).unit == "containerd"
    with pytest.raises(NriRdmaError, match="cannot be read"):
        find_containerd(8, None, tmp_path)
    (process / "comm").write_text("containerd\n")
    (tmp_path / "9").mkdir()
    (tmp_path / "9/comm").write_text("containerd-shim\n")
    (tmp_path / "10").mkdir()
    assert list(running_configs(tmp_path)) == [(7, Path("/etc/k3s.toml"))]


def test_where_none_runs_it_is_the_one_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(tmp_path, "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_containerd(0, None) == ContainerdProgram(program=made.program, config=DEFAULT_CONFIG.resolve())
