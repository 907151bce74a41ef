"""The wheel holds all that it needs: installed into an empty environment, it runs the programs of docs/ttrpc.md."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.installed import PROJECT, clean_environment, install_wheel

PAGE = PROJECT / "docs/ttrpc.md"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel, its dependencies and nothing else of ours."""
    return install_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_pages_server_and_client_talk(installed: Path, tmp_path: Path) -> None:
    _write_programs(tmp_path)
    with _process(installed, "server.py", tmp_path) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "ready\n"
            client = subprocess.run(
                [installed, "client.py"],
                cwd=tmp_path,
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert (client.stdout, client.stderr, client.returncode) == ("you said hello\n", "", 0)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(TIMEOUT_S)
    assert not (tmp_path / "echo.sock").exists()


def test_what_is_installed_is_the_wheel_and_tells_its_types(installed: Path, tmp_path: Path) -> None:
    code = "import nri_rdma.ttrpc.aio, pathlib; print(pathlib.Path(nri_rdma.__file__).parent)"
    told = subprocess.run(
        [installed, "-c", code], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=True
    )
    package = Path(told.stdout.strip())
    assert package.is_relative_to(installed.parents[1])
    assert (package / "py.typed").exists()


def test_the_command_is_there(installed: Path) -> None:
    done = subprocess.run(
        [installed.with_name("nri-rdma"), "--version"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_guards_hook_is_there_as_it_is_and_needs_nothing_of_the_environment(installed: Path) -> None:
    hook = installed.with_name("nri-rdma-hook")
    for file in (hook, hook.with_name("nri_rdma_hook.py")):
        assert file.read_bytes() == (PROJECT / "hooks" / file.name).read_bytes()
    for name in ("nri-rdma-guard.json", "nri-rdma.service"):
        assert (installed.parents[1] / "share/nri-rdma" / name).exists()
    done = subprocess.run([hook, "verify"], input="{}", env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_hook_of_podman_and_docker_is_there_as_it_is_and_needs_nothing_of_the_environment(installed: Path) -> None:
    hook = installed.with_name("nri-rdma-oci-hook")
    for file in (hook, hook.with_name("nri_rdma_oci_hook.py")):
        assert file.read_bytes() == (PROJECT / "hooks" / file.name).read_bytes()
    done = subprocess.run([hook, "--help"], env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: nri-rdma-oci-hook ")


def _write_programs(folder: Path) -> None:
    """The page's blocks that begin with a file's name."""
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for name, program in blocks:
        assert len(program.splitlines()) <= 20
        (folder / name).write_text(program)


@contextmanager
def _process(python: Path, program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that heeds SIGINT, as in a terminal: what a shell runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [python, program],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the trace of its KeyboardInterrupt
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()
