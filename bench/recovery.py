"""What journals of an earlier daemon add to a start: from exec to RegisterPlugin, with them less without.

Two kinds: of pods that are gone with their namespaces, so that everything has to be looked for and forgotten, and of
pods that still run, which are adopted. They are made of what a real attach wrote, once for each pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.figures import Row
from bench.hosts import Host, bind, unbind
from bench.messages import ANNOTATION, ONE_SHARED, pod, run_pod
from bench.peer import Listener
from bench.pods import NODE, accepted, refuse_error, request
from bench.processes import Place, await_rest, started
from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.record import SandboxRecord
from tests.rig.daemon import EXCLUSIVE_FIRST
from tests.rig.node import load

JOURNALS = (10, 100, 1000)
LIMIT_S, LIMITED = 1.0, 1000
"""So long may the start last longer with so many."""
NAME = "recovering"
DONE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of journals: the record of the pod of that number, and whether it is forgotten once it is undone."""

    name: str
    record: Callable[[int], SandboxRecord]
    is_undone: bool


def rows(folder: Path, rounds: int) -> list[Row]:
    """Those of both kinds. Raises RuntimeError."""
    with ExitStack() as stack:
        node = load(NODE)
        host = stack.enter_context(Host(folder / "recovery", node))
        place = Place(folder / "recovery", node, host)
        gone, adopted = _templates(place, host)
        there = _Paths(host, max(JOURNALS))
        stack.callback(there.close)
        kinds = (
            Kind(name="of pods that are gone", record=lambda number: _gone(gone, number), is_undone=True),
            Kind(name="of pods that run", record=lambda number: _adopted(adopted, there, number), is_undone=False),
        )
        bare: list[float] = []
        taken: dict[tuple[str, int], list[float]] = {(kind.name, count): [] for count in JOURNALS for kind in kinds}
        done: dict[tuple[str, int], float] = {}
        for number in range(rounds):
            bare.append(_start(place, None)[0])
            for kind, count in ((kind, count) for count in JOURNALS for kind in kinds):
                _fill(place, [kind.record(at) for at in range(count)])
                registered, finished = _start(place, kind if number == 0 else None, count)
                taken[kind.name, count].append(registered)
                if number == 0:
                    done[kind.name, count] = finished
                _clear(place)
    return [row for (kind, count), its in taken.items() for row in _rows(kind, count, bare, its, done[kind, count])]


def _rows(kind: str, count: int, bare: list[float], its: list[float], done_s: float) -> list[Row]:
    """The second is of one start only: what workers do after it keeps nobody from registering."""
    floor = median(bare)
    return [
        Row(
            figure=f"start later, {count} journals {kind}",
            value=median(mine - its for mine, its in zip(its, bare, strict=True)),
            unit="s",
            floor=floor,
            ratio=median(mine / its for mine, its in zip(its, bare, strict=True)),
            limit=LIMIT_S if count == LIMITED else None,
        ),
        Row(figure=f"all done, {count} journals {kind}", value=done_s, unit="s", floor=floor, ratio=done_s / floor),
    ]


class _Paths:
    """Paths of the namespaces of pods that run: many names for one, which costs a daemon as much as many would."""

    def __init__(self, host: Host, count: int) -> None:
        self._host, self._one = host, host.make_pod("one")
        self.paths = [host.pods / f"running-{number}" for number in range(count)]
        for path in self.paths:
            bind(self._one, path)

    def close(self) -> None:
        for path in self.paths:
            unbind(path)
        self._host.remove_pod(self._one)


def _templates(place: Place, host: Host) -> tuple[SandboxRecord, SandboxRecord]:
    """The records of a pod that has a device alone, and of one that shares one, as a daemon wrote them."""
    netns = host.make_pod("template")
    pods = (pod(1, {ANNOTATION: request(1)}, str(netns)), pod(2, {ANNOTATION: ONE_SHARED}, str(netns)))
    with (
        Listener(place.socket(NAME)) as listener,
        started(_command(place), place.folder / f"{NAME}.log") as process,
    ):
        peer = accepted(listener, process)
        peer.wait_for_registration()
        peer.activate()
        for message in pods:
            refuse_error(peer.call(run_pod(message)))
        await_rest(process.pid)
        records = [_read(place, message.id) for message in pods]
        peer.close()
    host.remove_pod(netns)
    with (
        Listener(place.socket(NAME, again=True)) as listener,
        started(_command(place), place.folder / f"{NAME}.log") as process,
    ):
        accepted(listener, process).close()  # it gives back what this attach took
        await_rest(process.pid)
    return records[0], records[1]


def _read(place: Place, sandbox_id: str) -> SandboxRecord:
    path = place.state(NAME) / "journal" / f"{sandbox_id}.json"
    return decode_record(path.read_bytes(), where=str(path))


def _gone(record: SandboxRecord, number: int) -> SandboxRecord:
    """Of another pod, with a namespace and a netdev of its own, both of which are no more."""
    (move,) = record.plan.moves
    assert record.namespace is not None
    ifindex, path = 100_000 + number, f"/run/netns/gone-{number}"
    mac = f"02:00:{number >> 24 & 255:02x}:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
    link = replace(move.link, ifindex=ifindex, mac=mac, name=f"gone{number}", alt_names=())
    return replace(
        record,
        pod=replace(record.pod, sandbox_id=f"{number:064x}", netns_path=path),
        namespace=replace(record.namespace, cookie=1_000_000_000 + number, path=path),
        plan=replace(record.plan, moves=(replace(move, link=link, pod_ifindex=ifindex),)),
    )


def _adopted(record: SandboxRecord, there: _Paths, number: int) -> SandboxRecord:
    return replace(record, pod=replace(record.pod, sandbox_id=f"{number:064x}", netns_path=str(there.paths[number])))


def _fill(place: Place, records: list[SandboxRecord]) -> None:
    journal = place.state(NAME) / "journal"
    for record in records:
        (journal / f"{record.key}.json").write_bytes(encode_record(record))


def _clear(place: Place) -> None:
    for path in (place.state(NAME) / "journal").iterdir():
        path.unlink()


def _start(place: Place, kind: Kind | None, count: int = 0) -> tuple[float, float]:
    """Seconds from exec until it registered, and until it had done all that these journals ask for; without a kind
    that is not waited for."""
    begin = time.perf_counter()
    with (
        Listener(place.socket(NAME, again=True)) as listener,
        started(_command(place), place.folder / f"{NAME}.log") as process,
    ):
        peer = accepted(listener, process)
        peer.wait_for_registration()
        registered = time.perf_counter() - begin
        if kind is not None:
            _await_done(place, kind, count)
            await_rest(process.pid, DONE_S)
        done = time.perf_counter() - begin
        peer.close()
    return registered, done


def _await_done(place: Place, kind: Kind, count: int) -> None:
    """What is gone is forgotten, what runs is kept, and nothing is set aside. Raises RuntimeError."""
    wanted = [] if kind.is_undone else [".json"] * count
    deadline = time.monotonic() + DONE_S
    while (left := sorted(path.suffix for path in (place.state(NAME) / "journal").iterdir())) != wanted:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} journals {kind.name}: {len(left)} are left, {set(left)}")
        time.sleep(0.01)


def _command(place: Place) -> list[str]:
    return place.daemon_command(NAME, *EXCLUSIVE_FIRST)
