"""The demo itself: it passes, it fails when something is wrong, and it leaves nothing however it ends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig import cache
from tests.rig.deadline import wait_until
from tests.rig.node import NODES
from tests.rig.record import own_network, read_in_bases

pytestmark = [pytest.mark.root, pytest.mark.runtime]

COMMAND = [sys.executable, "-m", "tests.rig.demo"]
_SECONDS = 300
_IN_THE_MIDDLE = "2. Two adapters"


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """A demo from its beginning to its end."""
    return _run(COMMAND)


def test_the_demo_passes_and_says_so_in_its_last_line(host_equal: None, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"demo: all \d+ checks passed in \d+\.\d s", done.stdout.splitlines()[-1])
    assert "DEVICE-IN-USE" in done.stdout
    assert "mtu was 9000, is 8000" in done.stdout


def test_the_demo_fits_any_terminal(done: subprocess.CompletedProcess[str]) -> None:
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
    assert "\x1b" not in done.stdout, "no colour without a terminal"


def test_a_wrong_mac_fails_the_demo(host_equal: None, tmp_path: Path) -> None:
    text = (NODES / "eight.toml").read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace("b8:3f:d2:00:10:05", "b8:3f:d2:00:10:55"))
    done = _run([*COMMAND, "--check-against", str(wrong)])
    assert done.returncode == 1
    assert re.search(r"rdma0 is rail5 +b8:3f:d2:00:10:55 +b8:3f:d2:00:10:05 +FAILED", done.stdout)
    assert re.match(r"demo: \d+ of \d+ checks FAILED", done.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_clears_everything(host_equal: None, number: signal.Signals) -> None:
    with _demo_in_the_middle() as demo:
        demo.send_signal(number)
        rest = demo.stdout.read() if demo.stdout else ""
        assert demo.wait(_SECONDS) == 128 + number
    assert "Stopped: " in rest
    assert _left() == []


def test_a_killed_story_is_cleared_by_the_process_around_it(host_equal: None) -> None:
    with _demo_in_the_middle() as demo:
        os.kill(_story_of(demo), signal.SIGKILL)
        assert demo.wait(_SECONDS) == 128 + signal.SIGKILL
    assert _left() == []


def test_a_killed_demo_is_cleared_by_the_next_one(host_equal: None) -> None:
    with _demo_in_the_middle() as demo:
        story = _story_of(demo)
        demo.kill()
        os.kill(story, signal.SIGKILL)
        demo.wait(_SECONDS)
    assert len(_left()) == 2
    # Until its new parent has looked, a killed process counts as one that lives.
    wait_until(lambda: not Path(f"/proc/{story}").exists(), "the killed process to be reaped", _SECONDS)
    next_one = _run(COMMAND)
    assert next_one.returncode == 0, next_one.stdout
    assert _left() == []


def test_a_reader_who_leaves_ends_the_demo_in_order(host_equal: None) -> None:
    with _demo_in_the_middle() as demo:
        assert demo.stdout is not None
        demo.stdout.close()
        assert demo.wait(_SECONDS) == 1
    assert _left() == []


def test_a_second_demo_says_why_it_does_not_start(host_equal: None) -> None:
    with _demo_in_the_middle() as demo:
        second = _run(COMMAND)
        assert second.returncode == 1
        assert "another demo is under way" in second.stderr
        demo.terminate()
        demo.wait(_SECONDS)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cache.PROJECT, capture_output=True, text=True, timeout=_SECONDS, check=False)


@contextmanager
def _demo_in_the_middle() -> Iterator[subprocess.Popen[str]]:
    """A demo whose first pod runs."""
    with subprocess.Popen(
        COMMAND, cwd=cache.PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        shown = []
        for line in demo.stdout:
            shown.append(line)
            if line.startswith(_IN_THE_MIDDLE):
                break
        else:
            pytest.fail("the demo ended early:\n" + "".join(shown))
        yield demo


def _story_of(demo: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()[0])


def _left() -> list[Path]:
    """What demos have in the folders for run directories; a rig of this very process is none of them."""
    records = [*read_in_bases("nrirdma-*/rig.json"), *read_in_bases("nrirdma-*/fabric.json")]
    here = [record for record in records if record["network"] == own_network()]
    return [Path(record["run"]) for record in here if int(record["owner_pid"]) != os.getpid()]


PROMPT = """
pod run one 1
pod run two '[{name: fast, count: 2, mode: exclusive}]'
pod exec two sh -c 'env | grep RDMA_DEVICES_FAST'
pod run greedy 99
nri-rdma status
nri-rdma trace two
nri-rdma explain docs/examples/own-addresses.yaml
pod list
pod delete one
pod exec one true
"""


def test_a_kept_node_takes_pods_and_is_given_back(host_equal: None) -> None:
    command = [*COMMAND, "--keep"]
    done = subprocess.run(
        command, cwd=cache.PROJECT, input=PROMPT, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    lines = done.stdout.splitlines()
    assert "default/one runs" in lines, done.stdout + done.stderr
    assert "RDMA_DEVICES_FAST=mlx5_1,mlx5_2" in lines
    assert "DEVICES-EXHAUSTED" in done.stderr
    assert any(line.startswith("RunPodSandbox  default/two  ") for line in lines)
    assert {"default/one  main", "default/two  main"} <= set(lines)
    assert done.stderr.splitlines()[-1] == "pod: there is no pod one; `pod list` shows those there are"
    assert done.returncode == 0
