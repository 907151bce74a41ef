"""Two builds at once do not meet in the cache, and one without a cache says so."""

import os
import subprocess
import sys
from pathlib import Path

from deploy.image.steps import CACHE_VARIABLE, PROJECT

BUILD = """
import sys
from deploy.image.steps import only_one
with only_one():
    print("builds", flush=True)
    sys.stdin.readline()
"""


def build(cache: Path) -> subprocess.Popen[str]:
    """Start what has the cache until it is told to end."""
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    command, pipe = [sys.executable, "-c", BUILD], subprocess.PIPE
    return subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=pipe, stdout=pipe, text=True)


def test_a_second_build_says_that_it_waits_and_goes_on_when_the_first_has_ended(tmp_path: Path) -> None:
    with build(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "builds\n"
        with build(tmp_path) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == f"image: another build uses {tmp_path}; waiting for its end\n"
            first.communicate("\n")
            assert second.communicate("\n")[0] == "builds\n"


def test_a_cache_that_cannot_be_written_is_a_sentence_with_the_next_step() -> None:
    environment = {**os.environ, CACHE_VARIABLE: "/dev/null/cache"}
    command = [sys.executable, "-m", "deploy.image"]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    told = "image: [Errno 20] Not a directory: '/dev/null/cache'. Next: see who owns the folder, and its free space.\n"
    assert (done.returncode, done.stderr) == (1, told)
