"""Placement against independent searches, on random nodes whose distances are known because they were built that way.

Compared are the values of docs/placement.md: A, how many devices have a dead port and how well the pod is served; how
many pods have the devices of a request that shares; and then B, what is left for the idle GPUs.
Small nodes are compared with trying everything; all of them with another algorithm (bench.exact), which trying
everything has to confirm.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import perm
from random import Random

import pytest

from bench.exact import cheapest
from nri_rdma.decide.placement import Placed, place
from nri_rdma.decide.policy import Admitted, Offer
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import RdmaDevice
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Align, AlignTo, DeviceRequest, Match, Mode
from tests.unit.decide.made_nodes import VENDORS, Far, MadeNode, random_node

LONG, SHORT = 10_000, 1000
FEW_WAYS = 20_000
"""Ways to give devices to GPUs that are all tried."""
_BASE = 64
"""More than any count of pairs."""

Value = tuple[int, int, int, int]
"""Of some pairs: how many are beyond the root complex, beyond the NUMA node, over the root complex, over several
switches; fewer is better, the first counts most."""


def value(distances: Sequence[Far]) -> Value:
    number = Counter(distances)
    return (number[Far.NODE] + number[Far.SYS], number[Far.SYS], number[Far.PHB], number[Far.PXB])


def as_number(far: Far) -> int:
    """So that sums compare as values do."""
    number = 0
    for digit in value([far]):
        number = number * _BASE + digit
    return number


# Questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request on a made node; two for the same pod are served one after the other."""

    made: MadeNode
    offer: Offer
    admitted: tuple[Admitted, ...]


def question(seed: int) -> Question:
    """The one of that number."""
    random = Random(seed)
    made = random_node(random)
    devices = made.node.devices
    other = (
        frozenset(device.id for device in devices if random.random() < 0.2) if random.random() < 0.2 else frozenset()
    )
    offer = Offer(
        by_pool={
            "default": tuple(device for device in devices if device.id not in other),
            "other": tuple(device for device in devices if device.id in other),
        },
        contested={},
    )
    mode = random.choice((Mode.EXCLUSIVE, Mode.EXCLUSIVE, Mode.SHARED))
    match = Match(vendor=random.choice(VENDORS)) if random.random() < 0.2 else Match()
    idle = made.idle
    gpus = tuple(random.sample(idle, min(len(idle), random.choice((0, 1, 1, 2, 2, 3, 4, 8, 16)))))
    align = _align(random, any(made.of_gpu[gpu].numa is not None for gpu in gpus), bool(gpus))
    request = DeviceRequest(name="a", where="HERE", match=match, gpus=gpus, align=align)
    room = max(1, len(free_for(made, offer, Admitted(request=request, mode=mode), ())))
    counts: list[int | None] = [min(room, random.choice((1, 1, 2, 2, 3, 4, 8, len(gpus) or 1, room)))]
    left = room - (counts[0] or 0)
    if_free = False
    if random.random() < 0.05:
        counts = [room + 1]
    elif random.random() < 0.1:
        counts, if_free = [None], random.random() < 0.5
    elif left and random.random() < 0.3:
        counts.append(random.randint(1, left))
    return Question(
        made=made,
        offer=offer,
        admitted=tuple(
            Admitted(
                request=DeviceRequest(
                    name=name,
                    where=f"HERE[{name}]",
                    match=match,
                    gpus=gpus,
                    align=align,
                    count=number,
                    if_free=if_free,
                ),
                mode=mode,
            )
            for name, number in zip("ab", counts, strict=False)
        ),
    )


def _align(random: Random, has_numa: bool, has_gpus: bool) -> Align | None:
    """Not among them: which NUMA node is taken for a pod whose GPUs have none, which is another question."""
    if random.random() < 0.4:
        return None
    to = random.choice([AlignTo.NONE, *[AlignTo.GPU] * 2, *[AlignTo.NUMA] * has_numa])
    return Align(to=to, strict=random.random() < 0.5 or not has_gpus)


def free_for(made: MadeNode, offer: Offer, admitted: Admitted, used: Sequence[RdmaDevice]) -> list[RdmaDevice]:
    """What the request can be given."""

    def is_free(device: RdmaDevice) -> bool:
        modes = {holding.mode for holding in made.taken.get(device.id, frozenset())} | {admitted.mode}
        held = device.id in made.taken and Mode.EXCLUSIVE in modes
        return not (device.in_use or held or device in used)

    align = admitted.request.align
    takes_down = align is None or not align.strict
    return [it for it in matching(offer, admitted) if is_free(it) and (takes_down or not is_down(it))]


def matching(offer: Offer, admitted: Admitted) -> list[RdmaDevice]:
    """What the request is about, free or not."""
    return [it for it in offer.by_pool["default"] if admitted.request.match.vendor in {None, it.vendor}]


def is_down(device: RdmaDevice) -> bool:
    """Whether none of its ports can carry data."""
    return all(port.state != "ACTIVE" for port in device.ports)


# Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request with what is free for it; `served` says what its GPUs have from requests before."""

    made: MadeNode
    free: Sequence[RdmaDevice]
    count: int
    gpus: tuple[PciAddress, ...]
    served: Mapping[PciAddress, int]
    near: AlignTo
    """What A counts: pairs by how far they are, devices that are not on a NUMA node of the GPUs, or nothing."""
    shares: bool

    def load(self, device: RdmaDevice) -> int:
        """How many pods have it beside this one."""
        return len(self.made.taken.get(device.id, ())) if self.shares else 0

    def far_from_idle(self, device: RdmaDevice, gpu: PciAddress) -> Far:
        """To an idle GPU a device that cannot carry data is as good as none."""
        return Far.SYS if is_down(device) else self.made.far(device, gpu)

    @property
    def idle(self) -> list[PciAddress]:
        return [gpu for gpu in self.made.idle if gpu not in self.gpus]

    @property
    def rounds(self) -> tuple[list[PciAddress], list[PciAddress], int]:
        """GPUs that get a device each, those of which only some do, and how many of these: evenly."""
        have, sure = dict(self.served), list[PciAddress]()
        while True:
            least = min(have.get(gpu, 0) for gpu in self.gpus)
            turn = [gpu for gpu in self.gpus if have.get(gpu, 0) == least]
            if len(sure) + len(turn) >= self.count:
                return sure, turn, self.count - len(sure)
            sure += turn
            have |= dict.fromkeys(turn, least + 1)

    def of_pairs(self, pairs: Sequence[tuple[RdmaDevice, PciAddress]]) -> Value:
        return value([self.made.far(device, gpu) for device, gpu in pairs])

    def off_home(self, devices: Sequence[RdmaDevice]) -> Value:
        """Where GPUs do not count as such."""
        homes = {self.made.of_gpu[gpu].numa for gpu in self.gpus} - {None}
        off = [device for device in devices if self.made.of_device[device.id].numa not in homes]
        return (len(off) if self.near is AlignTo.NUMA else 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Worth:
    """Of a placement, the less the better: devices without an active port, A, pods that have its devices, and B."""

    down: int
    near: Value
    load: int
    left: Value


def worth(case: Case, near: Value, devices: Sequence[RdmaDevice], left: Value) -> Worth:
    return Worth(down=sum(map(is_down, devices)), near=near, load=sum(map(case.load, devices)), left=left)


def worth_of(case: Case, given: Placed) -> Worth:
    """That of what was given."""
    if case.near is AlignTo.GPU:
        first = case.of_pairs(list(zip(given.devices, given.serves, strict=True)))
    else:
        first = case.off_home(given.devices)
    left = best_for_idle(case, [device for device in case.free if device not in given.devices])
    return worth(case, first, given.devices, left)


def best_for_idle(case: Case, left: Sequence[RdmaDevice]) -> Value:
    """B; a GPU that gets none counts as one that gets one elsewhere."""
    blank = [as_number(Far.SYS)] * len(case.idle)
    costs = [[as_number(case.far_from_idle(device, gpu)) for device in left] + blank for gpu in case.idle]
    columns = cheapest(costs)
    assert columns is not None
    far = [
        case.far_from_idle(left[it], gpu) if it < len(left) else Far.SYS
        for gpu, it in zip(case.idle, columns, strict=True)
    ]
    return value(far)


def best(case: Case) -> Worth:
    """The best one, in one assignment of all rows: the pod's and the idle GPUs'."""
    # A step of each outweighs all that come before it; a device less than asked outweighs all.
    load, first, down, last = _BASE**4, _BASE**5, _BASE**9, _BASE**10
    free = case.free
    always = {device.id: is_down(device) * down + case.load(device) * load for device in free}
    own: list[Sequence[int | None]]
    if case.near is AlignTo.GPU:
        sure, turn, some = case.rounds
        spare = len(turn) - some
        near = {
            gpu: [always[device.id] + as_number(case.made.far(device, gpu)) * first for device in free]
            for gpu in case.gpus
        }
        own = [near[gpu] + [None] * spare for gpu in sure]
        own += [[last + cost for cost in near[gpu]] + [0] * spare for gpu in turn]
    else:
        spare = 0
        own = [
            [always[device.id] + as_digits(case.off_home([device])) * first for device in free]
            for _ in range(case.count)
        ]
    blank = len(case.idle)
    costs: list[list[int | None]] = [[*line, *[None] * blank] for line in own]
    costs += [
        [as_number(case.far_from_idle(device, gpu)) for device in free] + [None] * spare + [as_number(Far.SYS)] * blank
        for gpu in case.idle
    ]
    columns = cheapest(costs)
    assert columns is not None
    total = sum((costs[row][column] or 0) for row, column in enumerate(columns)) % last
    return Worth(
        down=total // down,
        near=from_number(total % down // first),
        load=total % first // load,
        left=from_number(total % load),
    )


def as_digits(it: Value) -> int:
    return ((it[0] * _BASE + it[1]) * _BASE + it[2]) * _BASE + it[3]


def from_number(number: int) -> Value:
    return (number // _BASE**3, number // _BASE**2 % _BASE, number // _BASE % _BASE, number % _BASE)


def ways(case: Case) -> int:
    """How many there are to give devices to the pod and to the idle GPUs."""
    left = len(case.free) - case.count
    idle = perm(max(left, len(case.idle)), min(left, len(case.idle)))
    return perm(len(case.free), case.count) * (1 << len(case.gpus)) * idle


def best_of_all(case: Case) -> Worth:
    """The same by trying everything."""
    return min(
        worth(case, near, devices, best_for_idle_of_all(case, [it for it in case.free if it not in devices]))
        for near, devices in _choices(case)
    )


def _choices(case: Case) -> Iterator[tuple[Value, Sequence[RdmaDevice]]]:
    """Every way to serve the pod: how near its devices are, and which they are."""
    if case.near is not AlignTo.GPU:
        for devices in combinations(case.free, case.count):
            yield case.off_home(devices), devices
        return
    sure, turn, some = case.rounds
    for lucky in combinations(turn, some):
        for devices in permutations(case.free, case.count):
            pairs = list(zip(devices, (*sure, *lucky), strict=True))
            yield case.of_pairs(pairs), devices


def best_for_idle_of_all(case: Case, left: list[RdmaDevice]) -> Value:
    idle = case.idle
    if len(left) >= len(idle):
        ways_to = [list(zip(devices, idle, strict=True)) for devices in permutations(left, len(idle))]
    else:
        ways_to = [list(zip(left, gpus, strict=True)) for gpus in permutations(idle, len(left))]
    without = [Far.SYS] * (len(idle) - min(len(left), len(idle)))
    return min(value([case.far_from_idle(device, gpu) for device, gpu in pairs] + without) for pairs in ways_to)


# Answers


def answer(asked: Question) -> tuple[Placed, ...] | PlacementError:
    try:
        return place(asked.made.node, asked.offer, asked.made.taken, asked.admitted)
    except PlacementError as error:
        return error


def case_of(asked: Question, number: int, before: Sequence[Placed]) -> Case:
    """The request of that number, after others of its pod were served."""
    admitted = asked.admitted[number]
    request = admitted.request
    free = free_for(asked.made, asked.offer, admitted, [device for placed in before for device in placed.devices])
    return Case(
        made=asked.made,
        free=free,
        count=request.count or _all_of(asked, admitted, free),
        gpus=request.gpus,
        served=Counter(gpu for placed in before for gpu in placed.serves),
        near=_near(request),
        shares=admitted.mode is Mode.SHARED,
    )


def _all_of(asked: Question, admitted: Admitted, free: Sequence[RdmaDevice]) -> int:
    if admitted.request.if_free:
        return max(1, len([device for device in free if not is_down(device)]))
    return len(matching(asked.offer, admitted))


def _near(request: DeviceRequest) -> AlignTo:
    wanted = request.align.to if request.align is not None else AlignTo.GPU
    return wanted if request.gpus else AlignTo.NONE


def problems(asked: Question) -> list[str]:
    """What is wrong with the answer: nothing, or for each order in which the requests may have been served one line."""
    answered = answer(asked)
    if isinstance(answered, PlacementError):
        return _problem_of_refusal(asked, answered)
    orders = [[0]] if len(answered) == 1 else [[0, 1], [1, 0]]
    found = [_first_problem(asked, answered, order) for order in orders]
    return [] if None in found else [problem for problem in found if problem is not None]


def _first_problem(asked: Question, answered: tuple[Placed, ...], order: list[int]) -> str | None:
    before: list[Placed] = []
    for number in order:
        case, given = case_of(asked, number, before), answered[number]
        problem = _problem(case, given, asked.admitted[number].request)
        if problem is not None:
            return f"order {order}, request {number}: {problem}"
        before.append(given)
    return None


def _problem(case: Case, given: Placed, request: DeviceRequest) -> str | None:
    names = [device.name for device in given.devices]
    if len(set(names)) != case.count or not set(given.devices) <= set(case.free):
        return f"asked {case.count}, got {names}"
    if case.near is AlignTo.GPU and not _is_even(case, given.serves):
        return f"not evenly: {given.serves} beside {dict(case.served)}"
    got, wanted = worth_of(case, given), best(case)
    if ways(case) <= FEW_WAYS:
        assert best_of_all(case) == wanted, "the two ways to check disagree"
    if got != wanted:
        return f"expected {wanted}, got {got} with {names} for {[*map(str, given.serves)]}"
    if request.align is not None and request.align.strict and (wanted.near[0] or wanted.down):
        return f"strict, and given although the best has {wanted.near[0]} pairs too far, {wanted.down} dead ports"
    return None


def _is_even(case: Case, serves: Sequence[PciAddress]) -> bool:
    if len(serves) != case.count:
        return False
    sure, turn, _ = case.rounds
    more = Counter(serves) - Counter(sure)
    return not Counter(sure) - Counter(serves) and set(more) <= set(turn) and set(more.values()) <= {1}


def _problem_of_refusal(asked: Question, refusal: PlacementError) -> list[str]:
    """Right when there are too few devices, or when it is strict and no way has all near enough."""
    if len(asked.admitted) == 1:
        case, request = case_of(asked, 0, ()), asked.admitted[0].request
        if len(case.free) < case.count:
            return [] if refusal.code in {ErrorCode.DEVICES_EXHAUSTED, *_NO_MATCH} else [f"too few, said {refusal}"]
        if request.align is not None and request.align.strict and request.align.to is not AlignTo.NONE:
            far = best(case).near[0] if request.gpus else 1  # near to nothing known
            return (
                [] if far and refusal.code is ErrorCode.NOT_ALIGNED else [f"refused, expected {far} too far: {refusal}"]
            )
        return [f"refused, free {len(case.free)} of {case.count}: {refusal}"]
    strict = [item for item in asked.admitted if item.request.align is not None and item.request.align.strict]
    return [] if strict else [f"refused: {refusal}"]  # of two strict ones the order decides


_NO_MATCH = {ErrorCode.DEVICE_UNKNOWN, ErrorCode.NOT_IN_POOL, ErrorCode.DEVICE_IN_USE}


def digest(count: int) -> str:
    """Of the answers to the first questions, in every word."""
    words = "\n".join(told(answer(question(seed))) for seed in range(count))
    return hashlib.sha256(words.encode()).hexdigest()


def told(answered: tuple[Placed, ...] | PlacementError) -> str:
    """Without the request, which has sets in it."""
    if isinstance(answered, PlacementError):
        return str(answered)
    return str([(placed.devices, placed.reasons, placed.serves) for placed in answered])


# The tests


@pytest.fixture(scope="module")
def count(pytestconfig: pytest.Config) -> int:
    """A thousand for every run, more with --long."""
    return LONG if pytestconfig.getoption("--long") else SHORT


def test_no_placement_on_a_random_node_could_be_better_and_no_refusal_is_wrong(count: int) -> None:
    found = {seed: problem for seed in range(count) if (problem := problems(question(seed)))}
    assert not found


def test_the_questions_are_of_every_kind() -> None:
    """So that the test above says something of each."""
    kinds: Counter[str] = Counter()
    for seed in range(SHORT):
        asked = question(seed)
        answered, case = answer(asked), case_of(asked, 0, ())
        kinds["refused, too far"] += isinstance(answered, PlacementError) and answered.code is ErrorCode.NOT_ALIGNED
        if isinstance(answered, PlacementError):
            continue
        found, strict = best(case), asked.admitted[0].request.align
        kinds["tried in every way"] += ways(case) <= FEW_WAYS
        kinds["more than ten devices and ten GPUs"] += len(case.free) > 10 and len(case.gpus) + len(case.idle) > 10
        kinds["two requests"] += len(asked.admitted) > 1
        kinds["strict"] += case.near is AlignTo.GPU and strict is not None and strict.strict
        kinds["not all near"] += case.near is AlignTo.GPU and found.near[0] > 0
        kinds["more devices than GPUs"] += case.near is AlignTo.GPU and case.count > len(case.gpus)
        kinds["fewer devices than GPUs"] += case.near is AlignTo.GPU and case.count < len(case.gpus)
        kinds["no GPU, idle ones beside"] += not case.gpus and bool(case.idle) and found.left < worst(case)
        kinds["by NUMA node"] += case.near is AlignTo.NUMA
        kinds["several devices of a function"] += any("/" in device.id for device in case.free)
        kinds["a dead port is passed over"] += found.down < sum(map(is_down, case.free))
        kinds["a dead port is given"] += found.down > 0
        kinds["pods share its devices"] += found.load > 0
        kinds["virtual functions"] += any(device.virtual is not None for device in case.free)
    assert all(number >= SHORT // 50 for number in kinds.values()), kinds
    assert len(kinds) == 15


def worst(case: Case) -> Value:
    """B when no idle GPU gets anything."""
    return value([Far.SYS] * len(case.idle))


def test_the_same_question_has_the_same_answer_in_every_process() -> None:
    """Sets have another order in each."""
    code = f"from {__name__} import digest; print(digest(100))"
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1] == f"{digest(100)}\n"
