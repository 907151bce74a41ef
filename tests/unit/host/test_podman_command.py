"""podman is asked by its command line: a program of that name in PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host import podman_command
from nri_rdma.host.podman_command import PodmanContainer

SCRIPT = """#!/bin/sh
case "$*" in
    --version) echo "podman version 5.4.2" ;;
    "info "*) echo 'Error: toml: line 3' >&2; exit 125 ;;
    "ps --all --quiet --no-trunc") echo a1; echo b2 ;;
    "inspect --type container a1 b2") cat <<'X'
[{"Id": "a1f", "Name": "one", "Config": {"Annotations": {"k": "v"}}, "State": {"Running": true},
  "HostConfig": {"NetworkMode": "host"}},
 {"Id": "b2f", "Name": "two", "Config": {"Annotations": null}, "State": {"Running": false},
  "HostConfig": {"NetworkMode": "bridge"}}]
X
    ;;
    "inspect --type container -- two") cat <<'X'
[{"Id": "b2f", "Name": "two", "Config": {"Annotations": null}, "State": {"Running": false}, "HostConfig": {}}]
X
    ;;
    "inspect "*) echo 'Error: no such container' >&2; exit 125 ;;
    *) exit 9 ;;
esac
"""


TWO = PodmanContainer(id="b2f", name="two", annotations={}, is_running=False, has_host_network=False)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "podman"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def refusal_of(call: object) -> NriRdmaError:
    assert callable(call)
    with pytest.raises(NriRdmaError) as caught:
        call()
    assert caught.value.code is ErrorCode.INSTALL
    return caught.value


def test_it_tells_its_version(program: Path) -> None:
    assert podman_command.version_text() == "podman version 5.4.2\n"


def test_all_containers_are_told_with_their_annotations(program: Path) -> None:
    assert podman_command.containers() == (
        PodmanContainer(id="a1f", name="one", annotations={"k": "v"}, is_running=True, has_host_network=True),
        TWO,
    )


def test_one_container_is_told_by_its_name(program: Path) -> None:
    assert podman_command.container("two") == TWO


def test_a_container_that_is_not_there_is_told(program: Path) -> None:
    assert "no such container" in str(refusal_of(lambda: podman_command.container("three")))


def test_without_containers_nothing_is_inspected(program: Path) -> None:
    program.write_text(SCRIPT.replace("echo a1; echo b2", "true"))
    assert podman_command.containers() == ()


def test_what_it_says_when_it_fails_is_told(program: Path) -> None:
    assert "toml: line 3" in str(refusal_of(podman_command.read_configuration))


def test_that_it_is_not_there_is_told(program: Path) -> None:
    program.unlink()
    assert "no podman in PATH" in str(refusal_of(podman_command.version_text))


def test_one_that_does_not_answer_is_told(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(podman_command, "TIMEOUT_S", 0.2)
    assert "did not answer" in str(refusal_of(podman_command.version_text))
