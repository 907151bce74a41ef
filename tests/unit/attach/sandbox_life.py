"""What tests of sandboxes begin, end and look at."""

import threading
from collections.abc import Callable

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.attach.record import Phase
from nri_rdma.model.request import Mode
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.rigs.attachments import SOON, Rig, placed_on

Start = Callable[..., Rig]
"""Starts a daemon on a world (conftest.py)."""


def begin_attach(
    rig: Rig, *names: str, sandbox_id: str = "sandbox-1", mode: Mode = Mode.EXCLUSIVE, path: str = POD_PATH
) -> Attachment:
    pod = make_pod(sandbox_id, path=path)
    return rig.sandboxes.begin(pod, placed_on(rig.world, *(names or ("rail0",)), mode=mode), None)


def end_sandbox(rig: Rig, sandbox_id: str = "sandbox-1") -> None:
    done = rig.sandboxes.end(sandbox_id)
    if done is not None:
        done.result(SOON)


def records_of(rig: Rig) -> dict[str, Phase]:
    records, errors = rig.journal.load()
    assert not errors
    return {record.pod.sandbox_id: record.state for record in records}


def assert_nothing_left(rig: Rig) -> None:
    wait_until(lambda: rig.sandboxes.all() == (), "the sandboxes to be forgotten", SOON)
    assert rig.sandboxes.held() == 0
    assert rig.world.held == 0
    assert records_of(rig) == {}
    assert rig.clock.pending == []


def begin_often(rig: Rig) -> Attachment:
    return rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), None, attempts=ATTEMPTS)


def take_name(world: World, name: str) -> Callable[[], None]:
    """Somebody on the host takes the name; the result gives it back."""
    intruder = world.add_link(world.host, name)
    return lambda: drop(world.host.links.pop(intruder.ifindex))


def occupy(workers: Workers, *keys: str) -> Callable[[], None]:
    """Have a worker busy with each of these keys until the result is called."""
    go, begun = threading.Event(), threading.Barrier(len(keys) + 1)

    def work() -> None:
        begun.wait(SOON)
        assert go.wait(SOON)

    for key in keys:
        workers.submit(key, work)
    begun.wait(SOON)
    return go.set


def drop(_value: object) -> None:
    """For what nobody needs."""
