"""What `run --dry-run` prints, and how it ends."""

import json
import os
import threading
from contextlib import redirect_stdout

import pytest

from nri_rdma.commands.dryrun.cli import Reporter
from nri_rdma.commands.dryrun.verdicts import ContainerVerdict
from nri_rdma.model.edits import ContainerEdits
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.commands.dryrun.looking import SOON, Looking


def test_the_summary_counts_and_says_that_nothing_was_changed(
    looking: Looking, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = looking.connect()
    for name, text in (("a", "1"), ("b", "- {pool: gold}"), ("c", "- {pool: silver}"), ("d", None)):
        runtime.run_pod_sandbox(looking.pod(name, text))
    capsys.readouterr()
    looking.reporter.finished()
    assert json.loads(capsys.readouterr().out) == {
        "event": "finished",
        "pods": 4,
        "attach": 1,
        "refuse": 2,
        "nothing": 1,
        "served": 0,
        "codes": {"POOL-UNKNOWN": 2},
        "containers": 0,
        "changed": 0,
    }


def test_when_nobody_reads_on_it_ends_and_the_pods_do_not_notice(
    looking: Looking, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    looking.reporter.on_closed = ended.set
    runtime = looking.connect()
    reading, writing = os.pipe()
    os.close(reading)
    with capsys.disabled(), os.fdopen(writing, "w") as closed, redirect_stdout(closed):
        runtime.run_pod_sandbox(looking.pod("one", "1"))
        assert ended.wait(SOON)
        runtime.run_pod_sandbox(looking.pod("two", "1"))
        with pytest.raises(BrokenPipeError):
            looking.reporter.finished()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # what is buffered goes nowhere


def test_an_output_form_is_for_a_dry_run_only() -> None:
    assert_one_error(nri_rdma("run", "-o", "json"), "SETTING", 2)


def test_a_container_s_variables_are_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    edits = ContainerEdits(env=(("NCCL_IB_HCA", "=mlx5_0"), ("RDMA_DEVICES_0", "mlx5_0")))
    verdict = ContainerVerdict(sandbox_id="s", pod_name="default/a", container="main", edits=edits)
    Reporter(as_json=False).container(verdict)
    told = 'container default/a/main: would get NCCL_IB_HCA="=mlx5_0" RDMA_DEVICES_0="mlx5_0"'
    assert capsys.readouterr().out.strip() == told
