"""Docker is asked by its command line: a program of that name in PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host import docker_command
from nri_rdma.host.docker_command import DockerContainer, DockerRuntimes

SCRIPT = """#!/bin/sh
case "$*" in
    --version) echo "Docker version 28.5.2+dfsg3, build 89c5e8f" ;;
    "info --format {{json .}}") cat <<'X'
{"DefaultRuntime": "runc", "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "x": {"runtimeType": "y.v1"}}}
X
    ;;
    "ps --all --quiet --no-trunc") echo a1; echo b2 ;;
    "inspect --type container a1 b2") cat <<'X'
[{"Name": "/one", "HostConfig": {"Runtime": "nri-rdma.v1"}, "State": {"Running": true}},
 {"Name": "/two", "HostConfig": {}, "State": {"Running": false}}]
X
    ;;
    *) exit 9 ;;
esac
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "docker"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def test_it_tells_its_version() -> None:
    assert docker_command.version_text().startswith("Docker version 28.5.2")


def test_its_runtimes_are_told_with_their_programs() -> None:
    assert docker_command.runtimes() == DockerRuntimes(
        default="runc", programs={"io.containerd.runc.v2": "runc", "x": ""}
    )


def test_all_containers_are_told_with_their_runtimes(program: Path) -> None:
    assert docker_command.containers() == (
        DockerContainer(name="one", runtime="nri-rdma.v1", is_running=True),
        DockerContainer(name="two", runtime="", is_running=False),
    )
    program.write_text(SCRIPT.replace("echo a1; echo b2", "true"))
    assert docker_command.containers() == ()


def test_that_dockerd_is_not_there_is_told(program: Path) -> None:
    program.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    with pytest.raises(NriRdmaError) as caught:
        docker_command.runtimes()
    assert (caught.value.code, "Cannot connect" in str(caught.value)) == (ErrorCode.INSTALL, True)
