"""Which of several devices of one name a container gets, and what comes with a device."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.cdi.registry import Registry, ResolvedDevice, SpecFile, resolve
from nri_rdma.cdi.spec import Device, DeviceNode, Edits, Kind, NetDevice, Spec, Version
from nri_rdma.errors import CdiError, ErrorCode

KIND = Kind(vendor="ve", device_class="cl")


def spec_file(file: str, priority: int, *names: str, kind: Kind = KIND) -> SpecFile:
    devices = tuple(Device(name=name, edits=Edits(env=(f"FROM={file}",))) for name in names)
    return SpecFile(file=file, priority=priority, spec=Spec(version=Version.V0_3_0, kind=kind, devices=devices))


def files_of(registry: Registry) -> dict[str, str]:
    """The file of each device."""
    return {name: device.file for name, device in registry.devices.items()}


def nodes(*paths: str) -> Edits:
    return Edits(device_nodes=tuple(DeviceNode(path=path) for path in paths))


# Which file counts


def test_no_files_have_no_devices_and_no_problems() -> None:
    assert resolve([]) == Registry(devices={})


def test_devices_are_in_the_order_of_their_names() -> None:
    registry = resolve([spec_file("a", 0, "z", "b"), spec_file("b", 1, "a")])
    assert list(registry.devices) == ["ve/cl=a", "ve/cl=b", "ve/cl=z"]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_higher_priority_hides_the_lower_in_any_order_of_files(is_first: bool) -> None:
    low, high = spec_file("low", 0, "both", "only"), spec_file("high", 1, "both")
    registry = resolve([high, low] if is_first else [low, high])
    assert files_of(registry) == {"ve/cl=both": "high", "ve/cl=only": "low"}
    assert registry.devices["ve/cl=both"].device.edits.env == ("FROM=high",)
    assert registry.problems == ()


def test_one_name_twice_in_a_priority_is_nobodys_and_a_conflict_with_its_files_in_order() -> None:
    registry = resolve([spec_file(file, 0, "twice", *more) for file, more in (("c", ()), ("a", ("once",)), ("b", ()))])
    assert files_of(registry) == {"ve/cl=once": "a"}
    (problem,) = registry.problems
    assert (problem.code, problem.file) == (ErrorCode.CDI_CONFLICT, "a")
    assert problem.what == "no container can have ve/cl=twice: it is also in b and in c"


@pytest.mark.parametrize("priority", [0, 2])
def test_a_conflict_takes_the_name_from_every_other_priority_too(priority: int) -> None:
    registry = resolve([spec_file("a", 1, "x"), spec_file("b", 1, "x"), spec_file("c", priority, "x")])
    assert registry.devices == {}
    assert [problem.file for problem in registry.problems] == ["a"]


def test_a_name_of_two_kinds_is_two_devices() -> None:
    other = Kind(vendor="ve", device_class="other")
    registry = resolve([spec_file("a", 0, "x"), spec_file("b", 0, "x", kind=other)])
    assert files_of(registry) == {"ve/cl=x": "a", "ve/other=x": "b"}


def test_problems_of_reading_come_before_the_conflicts() -> None:
    earlier = CdiError(ErrorCode.CDI_SYNTAX, "it is no YAML", file="broken", hint="mend it")
    registry = resolve([spec_file("a", 0, "x"), spec_file("b", 0, "x")], (earlier,))
    assert registry.problems[0] is earlier
    assert [problem.code for problem in registry.problems] == [ErrorCode.CDI_SYNTAX, ErrorCode.CDI_CONFLICT]


_PLACES = st.lists(st.tuples(st.integers(0, 2), st.frozensets(st.sampled_from("abc"), min_size=1)), max_size=6)


@given(_PLACES, st.randoms(use_true_random=False))
def test_a_name_is_served_from_the_highest_priority_unless_a_priority_has_it_twice(
    places: list[tuple[int, frozenset[str]]], shuffle: random.Random
) -> None:
    files = [spec_file(f"f{at}", priority, *sorted(names)) for at, (priority, names) in enumerate(places)]
    counted = Counter((name, priority) for priority, names in places for name in names)
    twice = {name for (name, _), count in counted.items() if count > 1}
    expected = {
        f"ve/cl={name}": max((priority, f"f{at}") for at, (priority, names) in enumerate(places) if name in names)[1]
        for name in sorted({name for name, _ in counted} - twice)
    }
    shuffle.shuffle(files)
    registry = resolve(files)
    assert files_of(registry) == expected
    assert len(registry.problems) == sum(count > 1 for count in counted.values())


# What comes with a device


def resolved(own: Edits, spec: Edits) -> ResolvedDevice:
    device = Device(name="x", edits=own)
    made = Spec(version=Version.V0_3_0, kind=KIND, devices=(device,), edits=spec)
    return resolve([SpecFile(file="a", priority=0, spec=made)]).devices["ve/cl=x"]


def test_nodes_and_netdevs_of_the_spec_come_before_the_devices_own() -> None:
    common, own = (NetDevice(host_interface_name=name, name=name) for name in ("eth0", "eth1"))
    device = resolved(Edits(net_devices=(own,)), Edits(net_devices=(common,)))
    assert device.net_devices == (common, own)
    device = resolved(nodes("/dev/own"), nodes("/dev/common"))
    assert [node.path for node in device.nodes] == ["/dev/common", "/dev/own"]


def test_of_the_nodes_the_rdma_ones_are_those_of_the_subsystem() -> None:
    device = resolved(nodes("/dev/nvidia0", "/dev/infiniband/uverbs0"), nodes("/dev/infiniband/rdma_cm", "/dev/null"))
    assert [node.path for node in device.rdma_nodes] == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]


def test_an_annotation_is_the_devices_before_the_specs_also_when_it_is_empty() -> None:
    own = (("both", ""), ("own", "1"))
    device = Device(name="x", edits=Edits(), annotations=own)
    common = (("both", "spec"), ("common", "2"))
    spec = Spec(version=Version.V0_6_0, kind=KIND, devices=(device,), annotations=common)
    found = resolve([SpecFile(file="a", priority=0, spec=spec)]).devices["ve/cl=x"]
    assert {key: found.annotation(key) for key in ("both", "own", "common", "none")} == {
        "both": "",
        "own": "1",
        "common": "2",
        "none": None,
    }
