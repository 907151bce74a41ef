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


def test_that_dockerd_is_not_there_is_told_by_a_docker_that_ends_with_0(program: Path) -> None:
    """Docker 23 to 28.0: docker/cli issue 5900."""
    told = '{"Runtimes": null, "DefaultRuntime": "", "ServerErrors": ["Cannot connect to the Docker daemon"]}'
    program.write_text(f"#!/bin/sh\necho '{told}'\n")
    with pytest.raises(NriRdmaError, match="Cannot connect to the Docker daemon"):
        docker_command.runtimes()


def test_a_container_that_is_removed_meanwhile_does_not_hide_the_others(program: Path) -> None:
    gone = program.with_name("gone")
    ends = f"[ -e {gone} ] || {{ touch {gone}; echo []; echo 'Error: No such container: b2' >&2; exit 1; }}; cat <<'X'"
    program.write_text(SCRIPT.replace("a1 b2\") cat <<'X'", f'a1 b2") {ends}'))
    assert [it.name for it in docker_command.containers()] == ["one", "two"]
    assert gone.exists()
