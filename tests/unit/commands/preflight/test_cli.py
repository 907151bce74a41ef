"""The table of the command `nri-rdma preflight`."""

import pytest

from nri_rdma.commands.doctor.finding import ok, problem, warning
from nri_rdma.commands.preflight.cli import show
from tests.unit.commands.cli.program import assert_one_error, nri_rdma


def test_the_table_has_what_is_not_ok_and_names_three_nodes_of_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    low = warning("memlock", "too low", "raise it")
    found = {f"n{number}": (ok("kernel", "Linux"), low) for number in range(1, 6)}
    assert show({**found, "n9": (problem("devices", "none", "load a driver"),), "-": ()}) == 1
    assert capsys.readouterr().out.splitlines() == [
        "NODE                   RESULT   CHECK    FOUND",
        "n9                     problem  devices  none",
        "                                         fix: load a driver",
        "n1, n2, n3 and 2 more  warning  memlock  too low",
        "                                         fix: raise it",
        "",
        "6 nodes: 1 problem, 1 warning. Nothing was installed or changed.",
    ]


def test_nodes_without_a_fault_have_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert show({"n1": (ok("kernel", "Linux"),), "-": ()}) == 0
    assert capsys.readouterr().out == "1 node: all ok\n"


def test_outside_of_a_pod_the_error_says_where_it_runs() -> None:
    line = assert_one_error(nri_rdma("preflight", "--namespace", "rdma"), "API-SERVER", 1)
    assert "in the chart's Job only" in line
    assert "it is tried again" not in line, "this command tries once"
