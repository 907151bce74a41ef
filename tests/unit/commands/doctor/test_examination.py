"""All checks of the doctor together."""

import ast
from pathlib import Path

import pytest

from nri_rdma.commands.doctor.examination import CHECKS, Check, examine
from nri_rdma.model.device import RdmaNetns
from tests.unit.commands.doctor.bench import PROBLEM, WARNING, Bench


def test_no_two_checks_have_one_name_and_each_fault_has_a_fix(bench: Bench) -> None:
    bench.change_node(devices=(), rdma_netns=RdmaNetns.NONE)
    findings = examine(bench.machine)
    assert len({it.check for it in findings}) == len(CHECKS)
    assert all(it.fix for it in findings if it.result in {PROBLEM, WARNING})


def test_no_finding_and_no_fix_ends_with_a_full_stop(bench: Bench) -> None:
    for devices in (None, ()):
        if devices is not None:
            bench.change_node(devices=devices, rdma_netns=RdmaNetns.NONE)
        findings = examine(bench.machine)
        assert [it for it in findings if it.found.endswith(".") or it.fix.endswith(".")] == []


def test_the_doctor_changes_no_file(bench: Bench) -> None:
    before = sorted(bench.folder.rglob("*"))
    examine(bench.machine)
    assert sorted(bench.folder.rglob("*")) == before


@pytest.mark.parametrize("check", CHECKS, ids=lambda it: f"{it.__module__.rpartition('.')[2]}.{it.__name__}")
def test_each_check_has_a_test_of_its_own(check: Check) -> None:
    """The tests above take all checks alike; what one finds, a test that names it has to show."""
    name, module = check.__name__, check.__module__.rpartition(".")[2]
    file = Path(__file__).with_name(f"test_{module}.py")
    used = ast.walk(ast.parse(file.read_text()))
    assert any(
        (isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value) == module)
        or (isinstance(node, ast.Name) and node.id == name)
        for node in used
    ), f"write a test of {module}.{name} into {file.name}: a machine for each thing that it finds (bench.py)"
