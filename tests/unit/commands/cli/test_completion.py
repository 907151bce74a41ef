"""The command `nri-rdma completion`: its script makes a shell complete commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import PROJECT, assert_one_error, nri_rdma


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("config", "s"), ["schema", "show"]),
        (("trace", "--err"), ["--errors"]),
    ],
)
def test_bash_completes_commands_and_options(tmp_path: Path, words: tuple[str, ...], completed: list[str]) -> None:
    program = tmp_path / "nri-rdma"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nri_rdma "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(nri-rdma completion bash); "
        'COMP_WORDS=(nri-rdma "$@"); COMP_CWORD=$#; _nri_rdma_completion nri-rdma; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split()) == completed, done.stderr


@pytest.mark.parametrize(("shell", "begins"), [("zsh", "#compdef nri-rdma"), ("fish", "function _nri_rdma_completion")])
def test_other_shells_have_their_scripts(shell: str, begins: str) -> None:
    done = nri_rdma("completion", shell)
    assert (done.returncode, done.stderr, done.stdout.startswith(begins)) == (0, "", True)
    assert "_NRI_RDMA_COMPLETE=" in done.stdout


def test_an_unknown_shell_is_a_usage_error() -> None:
    assert "tcsh" in assert_one_error(nri_rdma("completion", "tcsh"), "SETTING", 2)
