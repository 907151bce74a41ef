"""A scenario under a policy: who got what, and how that compares with what was free at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from bench.simulate_jobs import Job, Scenario, moments
from bench.simulate_machine import Machine
from bench.simulate_optimum import best_pairs, is_counted, most_aligned, value
from nri_rdma.decide.decision import Question
from nri_rdma.decide.policy import Asker, default_policy, offer
from nri_rdma.engine.reservations import Reservations
from nri_rdma.errors import PlacementError
from nri_rdma.model.pci import parse_pci_address
from nri_rdma.model.request import Align, AlignTo, DeviceRequest, Mode, PodRequest

Pairs = list[tuple[str, str]]
"""A NIC's name and the address of the GPU that it serves, "" for a pod without GPUs."""


class Policy(Protocol):
    """What decides. `free` is for those who do not keep books themselves."""

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        """The job's NICs, or None: refused."""

    def take_back(self, job: Job) -> None:
        """The job has ended."""


class Ours:
    """The product's own placement, with the product's own books."""

    def __init__(self, machine: Machine) -> None:
        self._node = machine.node
        self._policy = default_policy(allow_exclusive=True)
        self._offer = offer(self._policy, machine.node)
        self._reservations = Reservations()

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        """As for an annotation of the pod; the kubelet told its GPUs."""
        question = Question(
            owner=f"ns/job-{job.number}",
            asker=Asker(),
            request=PodRequest(requests=(replace(_request(job), mode=Mode.EXCLUSIVE),)),
            node=self._node,
            policy=self._policy,
            offer=self._offer,
        )
        decision = self._reservations.place(str(job.number), question)
        if isinstance(decision.refusal, PlacementError):
            return None
        if decision.refusal is not None:
            raise decision.refusal
        (placed,) = decision.placed
        serves = [str(gpu) for gpu in placed.serves] or [""] * len(placed.devices)
        return [(device.name, gpu) for device, gpu in zip(placed.devices, serves, strict=True)]

    def take_back(self, job: Job) -> None:
        """The sandbox is gone."""
        self._reservations.release(str(job.number))


def _request(job: Job) -> DeviceRequest:
    gpus = [parse_pci_address(gpu) for gpu in job.gpus]
    return DeviceRequest(
        name="nics",
        where=f"job {job.number}",
        count=job.nics,
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
        gpus_from="the kubelet",
        align=Align(to=AlignTo.GPU, strict=True) if job.strict else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LowestIndex:
    """What one gets without placement: the first that are free. What they serve is told in their favour."""

    machine: Machine

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        """Refuses only where there are too few."""
        return _paired(self.machine, free[: job.nics], job)

    def take_back(self, job: Job) -> None:
        """Keeps no books."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyFree:
    """Free ones at random. What they serve is told in their favour."""

    machine: Machine
    random: Random

    def give(self, job: Job, free: Sequence[str]) -> Pairs | None:
        """Refuses only where there are too few."""
        return _paired(self.machine, self.random.sample(free, min(len(free), job.nics)), job)

    def take_back(self, job: Job) -> None:
        """Keeps no books."""


def _paired(machine: Machine, nics: Sequence[str], job: Job) -> Pairs | None:
    if len(nics) < job.nics:
        return None
    return best_pairs(machine, nics, job) if job.gpus else [(nic, "") for nic in nics]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a scenario, in jobs and in pairs of a NIC and a GPU; only jobs with GPUs that ask for NICs count as aligned.

    `served` are all that were given NICs, `counted` those of them with GPUs; `refused_while_admissible` are the refused
    for whom there was a way at that moment, `worse_than_free` the jobs that better NICs were free for."""

    served: tuple[Job, ...]
    refused: tuple[Job, ...]
    aligned: int
    pairs: int
    aligned_pairs: int
    refused_while_admissible: int
    worse_than_free: int

    @property
    def counted(self) -> int:
        """Jobs that can be aligned."""
        return sum(is_counted(job) for job in self.served)

    @property
    def share(self) -> float:
        """Of the jobs that were served."""
        return self.aligned / self.counted if self.counted else 1.0


def run(machine: Machine, scenario: Scenario, policy: Policy) -> Outcome:
    """Let all come and go. Raises ValueError when the policy gives what it must not."""
    holders: dict[str, int] = {}
    served, refused = list[Job](), list[Job]()
    aligned = pairs_seen = aligned_pairs = admissible = worse = 0
    for gone, job in moments(scenario.jobs):
        for other in gone:
            policy.take_back(other)
        leavers = {other.number for other in gone}
        holders = {nic: number for nic, number in holders.items() if number not in leavers}
        if not job.nics:
            continue
        free = [nic for nic in machine.nics if nic not in holders]
        given = policy.give(job, free)
        if given is None:
            refused.append(job)
            admissible += _is_admissible(machine, free, job)
            continue
        _check(job, free, given)
        served.append(job)
        holders |= {nic: job.number for nic, _ in given}
        if not job.gpus:
            continue
        near = sum(machine.is_aligned(nic, gpu) for nic, gpu in given)
        aligned += near == job.nics
        pairs_seen += job.nics
        aligned_pairs += near
        best = value(machine.far[pair] for pair in best_pairs(machine, free, job))
        worse += value(machine.far[pair] for pair in given) > best
    return Outcome(
        served=tuple(served),
        refused=tuple(refused),
        aligned=aligned,
        pairs=pairs_seen,
        aligned_pairs=aligned_pairs,
        refused_while_admissible=admissible,
        worse_than_free=worse,
    )


def _is_admissible(machine: Machine, free: Sequence[str], job: Job) -> bool:
    if job.strict:
        return most_aligned(machine, free, job) == job.nics
    return len(free) >= job.nics


def _check(job: Job, free: Sequence[str], given: Pairs) -> None:
    nics, gpus = [nic for nic, _ in given], [gpu for _, gpu in given if gpu]
    if len(set(nics)) != job.nics or not set(nics) <= set(free):
        raise ValueError(f"job {job.number} asked {job.nics} of {free} and got {nics}")
    if job.gpus and (len(set(gpus)) != job.nics or not set(gpus) <= set(job.gpus)):
        raise ValueError(f"job {job.number} has {job.gpus}, and its NICs serve {gpus}")
