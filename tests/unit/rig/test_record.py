"""What a killed run left is removed by one process at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.record import sweeping

PROJECT = Path(__file__).resolve().parents[3]
OTHER = """
from tests.rig.record import sweeping
print("here", flush=True)
with sweeping():
    print("swept", flush=True)
"""


def test_another_process_waits_until_the_first_has_swept() -> None:
    with sweeping():
        other = subprocess.Popen([sys.executable, "-c", OTHER], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=30)[0] == "swept\n"
