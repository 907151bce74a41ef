"""The short form of `make simulate`, and whether what it measures with can be believed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import permutations

import pytest

from bench.exact import cheapest, most_pairs
from bench.simulate import NODE, Compared, compare, main, report, scenarios, table
from bench.simulate_jobs import NEVER, Job, Picker, mixed, moments
from bench.simulate_machine import Far, Machine
from bench.simulate_optimum import best_pairs, clairvoyant, if_moved, is_counted
from bench.simulate_run import LowestIndex, Ours, Pairs, run
from tests.rig.node import load

ARRIVALS, SEED = 150, 7
SHARES = {"aligned_share", "optimum_share", "baseline_lowest_index", "baseline_random"}


@pytest.fixture(scope="module")
def eight() -> Machine:
    return Machine.of(load(NODE))


@pytest.fixture(scope="module")
def compared(eight: Machine) -> list[Compared]:
    return [compare(eight, scenario, SEED) for scenario in scenarios(eight, ARRIVALS, SEED)]


def test_jobs_with_gpus_are_aligned_as_often_as_an_offline_matching_allows(compared: list[Compared]) -> None:
    promised = [it for it in compared if it.is_promised]
    assert {it.scenario.name for it in promised} == {"one-GPU jobs", "two-GPU jobs", "mixed jobs"}
    for it in promised:
        assert it.ours.aligned == it.optimum == it.if_moved == it.ours.counted > 0
        assert it.ours.aligned_pairs == it.ours.pairs


def test_no_job_gets_less_than_the_best_that_was_free_when_it_came(compared: list[Compared]) -> None:
    assert [it.ours.worse_than_free for it in compared] == [0] * len(compared)
    assert sum(it.lowest_index.worse_than_free for it in compared) > 0


def test_nobody_is_refused_who_could_be_served(compared: list[Compared]) -> None:
    assert [it.ours.refused_while_admissible for it in compared] == [0] * len(compared)
    assert sum(len(it.ours.refused) for it in compared) > 0


def test_among_pods_without_gpus_ours_stays_below_the_optimum_and_above_the_others(compared: list[Compared]) -> None:
    beside = [it for it in compared if it.scenario.has_strangers and it.is_comparable]
    assert len(beside) >= 4
    for it in beside:
        assert it.lowest_index.aligned < it.ours.aligned <= it.optimum <= it.if_moved
        assert it.random.aligned < it.ours.aligned


def test_no_node_can_be_named_on_which_a_job_may_never_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.simulate", "--node", "no-such-node"])
    with pytest.raises(SystemExit):
        main()


def test_the_report_has_the_shares_and_the_refusals(compared: list[Compared]) -> None:
    document = report(compared)
    assert set(document) > SHARES
    assert document["aligned_share"] == document["optimum_share"] == 1
    assert document["refused_while_admissible"] == document["worse_than_best_free"] == 0
    for baseline in ("baseline_lowest_index", "baseline_random"):
        assert 0 < float(str(document[baseline])) < 0.9
    assert "NOT MET" not in table(compared)


class Blind(Ours):
    """Ours that does not know the pods' GPUs."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._machine = machine

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        unknown = Job(number=job.number, comes=job.comes, leaves=job.leaves, gpus=(), nics=job.nics)
        given = super().give(unknown, free)
        return given and best_pairs(self._machine, [nic for nic, _ in given], job) if job.gpus else given


def test_a_placement_that_does_not_know_the_gpus_is_found_out(eight: Machine) -> None:
    scenario = mixed("mixed jobs", ARRIVALS, eight.gpus, Picker.RANDOM, SEED)
    blind = compare(eight, scenario, SEED, Blind)
    assert not blind.is_met
    assert blind.ours.worse_than_free > 0
    assert "NOT MET" in table([blind])


class Timid(Ours):
    """Ours that refuses every second pod."""

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        return super().give(job, free) if job.number % 2 else None


def test_a_refusal_of_what_could_be_served_is_found_out(eight: Machine) -> None:
    timid = compare(eight, mixed("mixed jobs", ARRIVALS, eight.gpus, Picker.LOWEST, SEED), SEED, Timid)
    assert timid.ours.refused_while_admissible == len(timid.ours.refused) > 0
    assert not timid.is_met


class Greedy(LowestIndex):
    """Gives what others have."""

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        return super().give(job, self.machine.nics)


def test_a_nic_that_is_given_twice_ends_the_simulation(eight: Machine) -> None:
    scenario = mixed("mixed jobs", ARRIVALS, eight.gpus, Picker.LOWEST, SEED)
    with pytest.raises(ValueError, match="asked"):
        run(eight, scenario, Greedy(machine=eight))


# What it measures with


def test_the_distances_of_eight_are_those_of_its_description(eight: Machine) -> None:
    assert eight.nics == tuple(f"mlx5_{number}" for number in range(8))
    for number, nic in enumerate(eight.nics):
        near = [eight.far[nic, gpu] for gpu in eight.gpus]
        assert near[number] is Far.PHB
        assert near.count(Far.NODE) == 3
        assert near.count(Far.SYS) == 4


def test_gpus_are_given_once_at_a_time(eight: Machine) -> None:
    there: list[Job] = []
    for gone, job in moments(mixed("", ARRIVALS, eight.gpus, Picker.RANDOM, SEED, strangers=0.2).jobs):
        there = [other for other in there if other not in gone]
        assert not {gpu for other in there for gpu in other.gpus} & set(job.gpus)
        assert len(set(job.gpus)) == len(job.gpus)
        there.append(job)


def test_every_kind_of_job_comes(eight: Machine) -> None:
    jobs = mixed("", ARRIVALS, eight.gpus, Picker.LOWEST, SEED, strangers=0.2).jobs
    assert {len(job.gpus) for job in jobs} == {0, 1, 2, 4, 8}
    assert any(job.gpus and not job.nics for job in jobs)
    assert any(0 < job.nics < len(job.gpus) for job in jobs)


def job(number: int, comes: int, leaves: int, gpus: Sequence[str], nics: int) -> Job:
    return Job(number=number, comes=comes, leaves=leaves, gpus=tuple(gpus), nics=nics)


def test_who_knows_the_future_keeps_the_nic_free_that_will_be_missed(eight: Machine) -> None:
    """The stranger may take any NIC but the one of the GPU that comes next."""
    jobs = [job(0, 0, NEVER, (), 1), job(1, 1, NEVER, eight.gpus[:1], 1)]
    assert clairvoyant(eight, jobs) == 1


def test_nobody_knows_how_to_align_all_beside_a_stranger(eight: Machine) -> None:
    jobs = [job(0, 0, NEVER, (), 1), job(1, 1, NEVER, eight.gpus, 7), job(2, 2, NEVER, (), 0)]
    assert clairvoyant(eight, jobs) == 1
    singles = [job(0, 0, NEVER, (), 1)] + [job(n + 1, n + 1, NEVER, [gpu], 1) for n, gpu in enumerate(eight.gpus[:7])]
    assert clairvoyant(eight, singles) == 7
    late = [job(0, 0, 9, (), 1)] + [job(n + 1, n + 1, n + 2, [gpu], 1) for n, gpu in enumerate(eight.gpus)]
    assert clairvoyant(eight, late) == 7
    assert if_moved(eight, late) == sum(map(is_counted, late)) == 8


COSTS = [[[4, 1, 3], [2, 0, 5], [3, 2, 2]], [[1, 1, 9, 0], [1, 2, 0, 3]], [[7]], [[5, 2, 1], [2, 9, 1], [1, 1, 1]]]


@pytest.mark.parametrize("costs", COSTS)
def test_the_exact_search_finds_the_cheapest_of_all_ways(costs: list[list[int]]) -> None:
    columns = cheapest(costs)
    assert columns is not None
    assert len(set(columns)) == len(costs)
    every = permutations(range(len(costs[0])), len(costs))
    assert sum(line[it] for line, it in zip(costs, columns, strict=True)) == min(
        sum(line[it] for line, it in zip(costs, way, strict=True)) for way in every
    )


def test_the_exact_search_says_when_there_is_no_way() -> None:
    assert cheapest([[None, 1], [None, 2]]) is None
    assert most_pairs([[False, True], [False, True]]) == 1
