"""Measures of the running engine on the unit rig: which modules a call passes through, and what remembers a sandbox.

Both drive the engine as the unit tests do, with a fake kernel, and look its names up in the table of measure.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TypeVar

from nri_rdma.errors import NriRdmaError
from tests.house.measure import CREATE_CONTAINER, NO_MEMORY, NO_STAY, PACKAGE, RIG_ENGINE, RUN_POD, room_of
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import SOON, add_rail, make_world
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import (
    MOVE,
    NIC,
    OTHER_PATH,
    Calls,
    Node,
    container_message,
    daemon_on,
    sandbox_message,
    spec,
)

_T = TypeVar("_T")

SHORT_S = 0.05
"""Deadline of a container whose attach is kept from going on."""

Layers = Sequence[Sequence[str]]
"""Names of modules and folders, the highest layer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The modules that a call passes through, in order; equal neighbours are one stay."""

    stays: tuple[str, ...]

    def climbs(self, layers: Layers) -> tuple[tuple[str, str], ...]:
        """Return the pairs of neighbours of which the second is in a higher layer."""
        return tuple(pair for pair in pairwise(self.stays) if _is_climb(*pair, layers))


def _is_climb(one: str, other: str, layers: Layers) -> bool:
    low, high = _layer(one, layers), _layer(other, layers)
    return low is not None and high is not None and high < low


def _layer(module: str, layers: Layers) -> int | None:
    for number, names in enumerate(layers):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    return None


def record(begin: CodeType, call: Callable[[], object], package: str = PACKAGE) -> Walk:
    """Record the calling thread's walk through the package, from the call of `begin` to its return, while `call` runs.

    Functions that a decorator generated are left out: there is no text of them to read. Raises ValueError when `begin`
    was not called.
    """
    stays: list[str] = []
    depth = 0

    def observe(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal depth
        depth += (event == "call") if frame.f_code is begin else 0
        if event == "call" and depth:
            module = str(frame.f_globals.get("__name__", ""))
            is_written = not frame.f_code.co_filename.startswith("<")
            is_ours = module.partition(".")[0] == package and room_of(module) not in NO_STAY
            if is_written and is_ours and stays[-1:] != [module]:
                stays.append(module)
        depth -= (event == "return") if frame.f_code is begin else 0

    before = sys.getprofile()
    sys.setprofile(observe)
    try:
        call()
    finally:
        sys.setprofile(before)
    if not stays:
        raise ValueError(f"{begin.co_qualname} was not called")
    return Walk(stays=tuple(stays))


def walk_of_run_pod() -> Walk:
    """Walk of the engine's run_pod: a pod asks with an annotation for one device."""
    with _node() as node:
        return record(_code(node, RUN_POD), lambda: node.start(annotations=ONE))


def walk_of_create_container(*, is_told: bool) -> Walk:
    """Walk of the engine's create_container with a CDI device, of a pod that asks for nothing itself.

    With `is_told` the kubelet named the device at the start of the pod, so that it is attached; otherwise the attach
    begins with the container.
    """
    with _node() as node:
        if is_told:
            node.kubelet.give(make_pod(), "main", NIC)
        node.start(annotations={})
        return record(_code(node, CREATE_CONTAINER), lambda: node.create("main", 0, cdi=(NIC,)))


def memories_of_a_pod() -> tuple[str, ...]:
    """Name the containers within the engine's reach that have a sandbox as a key, of two pods with a CDI device.

    The kubelet names the first pod's device, which is attached and returned. The second pod's containers are answered
    while the attach runs, which fails then. What is under way when nobody looks (queues of tasks) is not counted.
    """
    return tuple(sorted(_memories_of_a_good_life() | _memories_of_a_failed_attach()))


def _memories_of_a_good_life() -> set[str]:
    pod = make_pod()
    with _node() as node:
        calls = Calls(node)
        node.kubelet.give(pod, "main", NIC)
        calls.run(sandbox_message(pod))
        found = {*memories(_engine(node), pod.sandbox_id)}
        calls.create(sandbox_message(pod), container_message("main", 0, cdi=(NIC,)))
        found.update(memories(_engine(node), pod.sandbox_id))
        calls.end(sandbox_message(pod))
        return found | {*memories(_engine(node), pod.sandbox_id)}


def _memories_of_a_failed_attach() -> set[str]:
    pod = make_pod()
    with _node() as node:
        gate = node.rig.gate
        gate.stop_at = gate.fail_at = "before move-netdev"
        node.start(annotations={})
        for _ in range(2):  # the second one finds the first one's attach, and waits at the barrier
            with suppress(NriRdmaError):
                node.create("main", 0, cdi=(NIC,), seconds=SHORT_S)
        found = {*memories(_engine(node), pod.sandbox_id)}
        (attach,) = node.rig.sandboxes.of(pod.sandbox_id)
        gate.open.set()
        attach.attach_done.exception(SOON)
        assert attach.undo_done is not None
        attach.undo_done.result(SOON)
        return found | {*memories(_engine(node), pod.sandbox_id)}


@contextmanager
def _node() -> Iterator[Node]:
    """A daemon on two adapters, one of which a CDI spec gives to pods."""
    world = make_world()
    add_rail(world, "rail1")
    world.add_namespace(OTHER_PATH)
    with tempfile.TemporaryDirectory() as state, daemon_on(world, Path(state), spec(NIC, 0, keys=MOVE)) as node:
        yield node


def _engine(node: Node) -> object:
    return getattr(node, _first(node, RIG_ENGINE))


def _code(node: Node, names: Sequence[str]) -> CodeType:
    kind = type(_engine(node))
    function = getattr(kind, _first(kind, names))
    assert isinstance(function, FunctionType)
    return function.__code__


def _first(holder: object, names: Sequence[str]) -> str:
    """Return the first of the names that the object has. Raises AttributeError when it has none."""
    for name in names:
        if hasattr(holder, name):
            return name
    raise AttributeError(f"{holder!r} has none of {', '.join(names)}: put the new name into the table of measure.py")


# Memories


def memories(root: object, sandbox_id: str, package: str = PACKAGE) -> tuple[str, ...]:
    """Name the containers that are reached from the root and have the sandbox's id as key, or first in a key.

    Goes through the package's own objects, containers, functions and what they enclose; an object of another package is
    not entered. A container's name is the class and attribute where it was first met.
    """
    found = []
    seen: set[int] = set()
    kept: list[object] = []  # so that no id is given twice
    pending = deque([(type(root).__name__, root)])
    while pending:
        where, item = pending.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        kept.append(item)
        if type(item).__name__ in NO_MEMORY:
            continue
        if isinstance(item, Mapping | AbstractSet) and any(_begins_with(key, sandbox_id) for key in _copy(item)):
            found.append(where)
        pending.extend(_reached(where, item, package))
    return tuple(sorted(found))


def _begins_with(key: object, sandbox_id: str) -> bool:
    """Return whether the key is the id, or a name, tuple or value whose first part is."""
    if isinstance(key, str):
        return key == sandbox_id or key.startswith(f"{sandbox_id}+")
    if isinstance(key, tuple):
        return bool(key) and _begins_with(key[0], sandbox_id)
    if is_dataclass(key) and not isinstance(key, type):
        return bool(fields(key)) and _begins_with(getattr(key, fields(key)[0].name, None), sandbox_id)
    return False


def _reached(where: str, item: object, package: str) -> Iterator[tuple[str, object]]:
    if isinstance(item, Mapping):
        inner = [value for pair in _copy(item.items()) for value in pair]
    elif isinstance(item, list | tuple | deque | AbstractSet):
        inner = [*_copy(item)]
    elif isinstance(item, MethodType):
        inner = [item.__self__]
    elif isinstance(item, FunctionType):
        inner = [cell.cell_contents for cell in item.__closure__ or ()]
    elif isinstance(item, partial):
        inner = [item.func, *item.args, *item.keywords.values()]
    elif type(item).__module__.partition(".")[0] == package:
        names = [name for name in _attribute_names(item) if hasattr(item, name)]
        yield from ((f"{type(item).__name__}.{name}", getattr(item, name)) for name in names)
        return
    else:
        return
    yield from ((where, value) for value in inner)


def _copy(items: Collection[_T]) -> tuple[_T, ...]:
    """Copy a container that a worker may change just now."""
    while True:
        try:
            return tuple(items)
        except RuntimeError:
            continue


def _attribute_names(item: object) -> Iterable[str]:
    """Name what the object stores: neither methods nor properties."""
    yield from vars(item) if hasattr(item, "__dict__") else ()
    for kind in type(item).__mro__:
        slots = vars(kind).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


# The report


def report(layers: Layers) -> Iterator[tuple[str, str]]:
    """Yield the names and figures of the running engine."""
    walks = {
        "run_pod": walk_of_run_pod(),
        "create_container, CDI": walk_of_create_container(is_told=False),
        "the same, attached": walk_of_create_container(is_told=True),
    }
    for name, walk in walks.items():
        modules = len(set(walk.stays))
        yield f"walk {name}", f"{len(walk.stays)} stays, {modules} modules, {len(walk.climbs(layers))} climbs"
    remembered = memories_of_a_pod()
    yield "memories", f"{len(remembered)}: {', '.join(remembered)}"
