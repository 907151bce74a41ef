"""All checks of the doctor together."""

from nri_rdma.commands.doctor.examination import CHECKS, examine
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
