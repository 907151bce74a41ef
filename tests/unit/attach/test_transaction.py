"""Whatever fails when, undo brings the world back to where it started; for generated plans on the fake kernel.

NRI_RDMA_PLANS sets how many plans are tried (`NRI_RDMA_PLANS=1000 pytest tests/unit/attach/test_transaction.py`).
"""

import logging
import os
import time
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.port import Kernel
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.errors import NriRdmaError
from nri_rdma.observe.spans import Recorder
from tests.fakes.kernel import CrashError, FakeKernel, FaultyKernel
from tests.unit.attach.builders import POD_PATH, record_of
from tests.unit.attach.grammar import keys_of_schema
from tests.unit.attach.scenarios import Scenario, meddle, scenarios

PLANS = int(os.environ.get("NRI_RDMA_PLANS", "60"))
MANY = 300
"""So many plans have every key of the grammar between them."""
SPANS = Recorder(capacity=1)
_RULES_OF_HOST = "rules of 1"
pytestmark = pytest.mark.timeout(120 + 4 * PLANS)
each_plan = settings(max_examples=PLANS, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _tally(request: pytest.FixtureRequest) -> Iterator[None]:
    """Report how much was tried, and that nothing of the grammar was missing where many plans are tried."""
    _TRIED.clear()
    begin, log = time.monotonic(), logging.getLogger("nri_rdma.attach.steps")
    log.setLevel(logging.ERROR)  # what stays on the host is a warning, a million of them
    yield
    log.setLevel(logging.NOTSET)
    if not _TRIED:
        return
    keys = frozenset[str]().union(*(it.keys for it in _TRIED))
    missing = keys_of_schema() - keys
    told = f"{len(_TRIED)} generated attaches, {len(keys)} keys, {time.monotonic() - begin:.0f} s"
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{told}{f', without {sorted(missing)}' if missing else ''}")
    assert not (missing and len(_TRIED) >= MANY), missing


_TRIED: list[Scenario] = []


class _Case:
    """A scenario with all that is the same in each of its runs."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        world = scenario.start()
        self.before = world.snapshot()
        kernel = FakeKernel(world)
        self.record = record_of(kernel, kernel.open_namespace(POD_PATH), scenario.placed)
        self.journalled = decode_record(encode_record(self.record), where="memory")

    def attached(self) -> "_Run":
        """A run in which the pod has its devices, and did something to them."""
        run = _Run(self)
        run.do(run.kernel)
        indexes = tuple(move.pod_ifindex for move in self.record.plan.moves)
        meddle(self.scenario, run.kernel, run.namespace, indexes)
        return run


class _Run:
    """One life of a daemon on a fresh copy of a scenario's world."""

    def __init__(self, case: _Case) -> None:
        self._case = case
        self.world = case.scenario.start()
        self.kernel = FakeKernel(self.world)
        self.namespace = self.kernel.open_namespace(POD_PATH)
        self.steps = steps_of(case.record.plan)

    def do(self, kernel: Kernel) -> None:
        do_steps(kernel, self.namespace, self.steps, SPANS)

    def undo(self, kernel: Kernel) -> tuple[NriRdmaError, ...]:
        return undo_steps(kernel, self.namespace, self.steps, SPANS)

    def restart(self) -> None:
        """The daemon was killed and starts anew, with what the journal says."""
        self.kernel.die()
        self.kernel = FakeKernel(self.world)
        self.namespace = self.kernel.open_namespace(POD_PATH)
        self.steps = steps_of(self._case.journalled.plan)

    def assert_home(self) -> None:
        for _ in range(2):
            assert self.undo(self.kernel) == ()
            assert self.world.snapshot() == self._case.before
            pod = self.world.namespace(POD_PATH)
            assert pod is not None
            assert pod.rejects == []
            assert not any(link.kind == "vrf" for link in pod.links.values())


def _is_of_pod(key: int | str) -> bool:
    """Whether a part of a snapshot is the pod's namespace's, and ends with it."""
    return str(key).startswith("rules of ") and key != _RULES_OF_HOST


def _operations(kernel: FaultyKernel) -> Iterator[tuple[int, bool]]:
    """Every operation of a run that went well, failing before it takes effect or after, in turn."""
    return ((number, bool(number % 2)) for number in range(1, kernel.operations + 1))


@each_plan
@given(scenarios())
def test_an_attach_that_fails_or_is_killed_anywhere_leaves_the_host_as_it_was(scenario: Scenario) -> None:
    case = _Case(scenario)
    _TRIED.append(scenario)
    whole = FaultyKernel((run := _Run(case)).kernel)
    run.do(whole)
    for number, after in _operations(whole):
        for crash in (False, True):
            run = _Run(case)
            with pytest.raises(CrashError if crash else NriRdmaError):
                run.do(FaultyKernel(run.kernel, fail_at=number, after=after, crash=crash))
            if crash:
                run.restart()
            run.assert_home()


@each_plan
@given(scenarios(), st.randoms(use_true_random=False))
def test_an_undo_that_fails_or_is_killed_is_finished_by_the_next_one(scenario: Scenario, random: Random) -> None:
    case = _Case(scenario)
    whole = FaultyKernel((run := case.attached()).kernel)
    assert run.undo(whole) == ()
    run.assert_home()
    for number, after in random.sample(list(_operations(whole)), 3):
        run = case.attached()
        try:
            errors = run.undo(FaultyKernel(run.kernel, fail_at=number, after=after, crash=random.random() < 0.5))
        except CrashError:
            run.restart()
        else:
            assert errors
        run.assert_home()


@each_plan
@given(scenarios())
def test_when_the_devices_are_said_to_be_back_their_namespace_may_end(scenario: Scenario) -> None:
    case = _Case(scenario)
    run = case.attached()

    def end() -> None:
        run.namespace.close()
        run.world.remove_namespace(POD_PATH)

    assert undo_steps(run.kernel, run.namespace, run.steps, SPANS, on_returned=end) == ()
    assert run.world.namespace(POD_PATH) is None
    assert run.world.snapshot() == {key: it for key, it in case.before.items() if not _is_of_pod(key)}


@each_plan
@given(scenarios(), st.randoms(use_true_random=False))
def test_devices_are_not_said_to_be_back_when_something_failed_on_their_way(scenario: Scenario, random: Random) -> None:
    case = _Case(scenario)
    whole, told = FaultyKernel((run := case.attached()).kernel), list[int]()
    undo_steps(whole, run.namespace, run.steps, SPANS, on_returned=lambda: told.append(whole.operations))
    (until,) = told
    for number in random.sample(range(1, until + 1), min(until, 3)):
        faulty, told = FaultyKernel((run := case.attached()).kernel, fail_at=number), []
        assert undo_steps(faulty, run.namespace, run.steps, SPANS, on_returned=lambda: told.append(0))  # noqa: B023
        assert told == []
        run.assert_home()


@each_plan
@given(scenarios())
def test_what_the_kernel_brought_home_itself_is_made_what_it_was(scenario: Scenario) -> None:
    case = _Case(scenario)
    run = case.attached()
    run.kernel.die()
    run.world.remove_namespace(POD_PATH)
    assert undo_steps(FakeKernel(run.world), None, run.steps, SPANS) == ()
    virtual: set[int | str] = {move.link.ifindex for move in case.record.plan.moves if not move.link.parent}
    virtual |= {move.device for move in case.record.plan.rdma_moves if not move.parent}
    virtual |= {key for key in case.before if _is_of_pod(key)}
    expected = [link for index, link in case.before.items() if index not in virtual]
    # By name: an interface number that the pod had taken is the one thing that the kernel does not give back.
    assert sorted(run.world.snapshot().values(), key=str) == sorted(expected, key=str)
