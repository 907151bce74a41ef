"""What specs and node say is one snapshot; who needs a spec that is not read yet waits for a reading."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest

from nri_rdma.cdi.index import ALLOCATION_KEY
from nri_rdma.cdi.registry import Registry
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import NotReadyError
from tests.unit.attach.builders import make_pod
from tests.unit.cdi.specs import KEY, edits, one, registry, spec_text, uverbs_path
from tests.unit.model.hardware import eight, nic, node, umad, uverbs

VF0, VF1 = "net.example/vf=vf0", "net.example/vf=vf1"
FIRST, SECOND = "first allocation", "second allocation"


class Drivers:
    """What is in the folder of specs, and the readings that were asked for."""

    def __init__(self) -> None:
        self.registry = Registry(devices={})
        self.asked: list[Future[None]] = []

    def read(self) -> Future[None]:
        self.asked.append(Future())
        return self.asked[-1]


@pytest.fixture
def drivers() -> Drivers:
    return Drivers()


def cache(drivers: Drivers, *, is_ready: bool = True, rereads: bool = True) -> SpecCache:
    return SpecCache(
        node=eight,
        registry=lambda: drivers.registry,
        prefix=KEY,
        reread=drivers.read if rereads else None,
        is_ready=is_ready,
    )


def test_a_snapshot_stays_as_it_was_when_the_specs_change(drivers: Drivers) -> None:
    made = cache(drivers)
    before = made.now
    drivers.registry = registry(one(uverbs_path(0)))
    assert made.now is before
    made.read_again()
    assert (before.index.is_for_any, made.now.index.is_for_any) == (False, True)
    assert before.index is not made.now.index


def test_nothing_is_known_of_rdma_devices_before_the_first_reading_is_done(drivers: Drivers) -> None:
    made = cache(drivers, is_ready=False)
    assert made.now.majors is None
    with pytest.raises(NotReadyError, match="network is not ready") as caught:
        made.await_ready(make_pod(), time.monotonic())
    assert caught.value.where == str(make_pod())
    made.set_ready()
    made.await_ready(make_pod(), time.monotonic())
    assert made.now.majors == frozenset({231})


def test_a_pod_waits_for_the_first_reading(drivers: Drivers) -> None:
    made = cache(drivers, is_ready=False)
    done = threading.Timer(0.05, made.set_ready)
    done.start()
    made.await_ready(make_pod(), time.monotonic() + 10)
    assert made.is_ready
    done.join()


def test_a_pod_waits_for_specs_that_are_expected_and_no_longer(drivers: Drivers) -> None:
    made = cache(drivers)
    made.expect([VF0], FIRST)
    was_ready = [made.is_ready]
    with pytest.raises(NotReadyError, match="network is not ready"):
        made.await_ready(make_pod(), time.monotonic() + 0.05)
    (reading,) = drivers.asked
    reading.set_result(None)
    made.await_ready(make_pod(), time.monotonic())
    was_ready.append(made.is_ready)  # a spec that was removed meanwhile keeps nobody waiting
    assert was_ready == [False, True]


def test_a_spec_that_was_read_is_expected_no_longer(drivers: Drivers) -> None:
    made = cache(drivers)
    made.expect([VF0, VF1], FIRST)
    drivers.registry = registry(claimed("vf0", FIRST))
    made.read_again()
    was_ready = [made.is_ready]  # the other one is not
    made.expect([VF0], FIRST)
    drivers.registry = registry(claimed("vf0", FIRST), claimed("vf1", FIRST))
    made.read_again()
    was_ready.append(made.is_ready)
    assert (was_ready, drivers.asked) == ([False, True], [])


def test_the_spec_of_an_earlier_allocation_does_not_count(drivers: Drivers) -> None:
    drivers.registry = registry(claimed("vf0", FIRST))
    made = cache(drivers)
    made.expect([VF0], SECOND)
    made.read_again()  # the node has changed, and nobody has read the folder
    with pytest.raises(NotReadyError):
        made.await_ready(make_pod(), time.monotonic())
    drivers.registry = registry(claimed("vf0", SECOND))
    made.read_again()
    made.await_ready(make_pod(), time.monotonic())


def test_a_reading_of_before_the_spec_was_written_is_not_waited_for(drivers: Drivers) -> None:
    drivers.registry = registry(claimed("vf0", FIRST))
    made = cache(drivers)
    made.reading_for([VF0]).set_result(None)
    made.expect([VF0], SECOND)
    with pytest.raises(NotReadyError):
        made.await_ready(make_pod(), time.monotonic())
    assert len(drivers.asked) == 2


def test_after_a_reading_that_failed_a_spec_is_still_expected(drivers: Drivers) -> None:
    made = cache(drivers)
    made.expect([VF0], FIRST)
    made.reading_for([VF0]).set_exception(OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(NotReadyError):
        made.await_ready(make_pod(), time.monotonic())
    assert not made.is_ready


def claimed(name: str, allocation: str) -> str:
    """The spec that was written for an allocation of a claim."""
    return spec_text({name: edits(uverbs_path(0))}, common_annotations={ALLOCATION_KEY: allocation})


def test_where_nothing_can_be_read_again_no_spec_is_expected(drivers: Drivers) -> None:
    made = cache(drivers, rereads=False)
    made.expect([VF0], FIRST)
    assert made.is_ready


def test_the_major_number_of_a_device_that_is_gone_stays_known() -> None:
    nodes = [eight()]
    made = SpecCache(node=lambda: nodes[0], registry=lambda: Registry(devices={}), prefix=KEY)
    nodes[0] = node(())
    made.read_again()
    assert made.now.majors == frozenset({231})


def test_only_the_major_numbers_of_verbs_are_those_of_rdma_devices() -> None:
    """A kernel with many devices gives umad nodes a number that another driver may have had before."""
    device = nic(0, chars=(uverbs(0), replace(umad(0), major=510)))
    made = SpecCache(node=lambda: node((device,)), registry=lambda: Registry(devices={}), prefix=KEY)
    assert made.now.majors == frozenset({231})


def test_a_name_that_no_spec_has_is_read_for_once_and_again_after_a_second(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now = cache(drivers), [100.0]
    monkeypatch.setattr("nri_rdma.engine.specs.time.monotonic", lambda: now[0])
    assert made.unread([VF0]) == [VF0]
    first = made.reading_for([VF0])
    assert made.reading_for([VF0]) is first
    first.set_result(None)
    now[0] += 0.5
    assert made.reading_for([VF0]) is first
    now[0] += 1.0
    assert made.reading_for([VF0]) is not first
    assert len(drivers.asked) == 2


def test_a_name_that_a_spec_has_needs_no_reading(drivers: Drivers) -> None:
    drivers.registry = registry(one(uverbs_path(0)))
    assert cache(drivers).unread([VF0]) == []


def test_nobody_waits_for_a_reading_that_nobody_can_do(drivers: Drivers) -> None:
    assert cache(drivers, rereads=False).unread([VF0]) == []


def test_of_very_many_names_the_oldest_are_forgotten(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_rdma.engine.specs._KEPT_NAMES", 2)
    made = cache(drivers)
    _first, second, third = (made.reading_for([f"net.example/vf={number}"]) for number in range(3))
    assert made.reading_for(["net.example/vf=1"]) is second
    assert made.reading_for(["net.example/vf=2"]) is third
    assert len(drivers.asked) == 3
    made.reading_for(["net.example/vf=0"])
    assert len(drivers.asked) == 4
