"""What the runtime is asked to change is nothing that NRI takes for a conflict of a plugin with itself."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.inject import AttachedRequest, inject
from nri_rdma.doors.nri.messages import (
    EVENTS,
    create_response,
    device_numbers,
    env_names,
    has_handlers_guard,
    has_our_names,
    is_privileged,
)
from nri_rdma.model.device import CharKind
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import RdmaLimits, Scope
from nri_rdma.pb import nri_pb2 as nri
from tests.unit.decide.test_inject import having
from tests.unit.model.hardware import RDMA_CM, nic, umad, uverbs

ENV = ["NCCL_IB_HCA", "UCX_NET_DEVICES", "RDMA_DEVICES_A", "RDMA_NETDEVS_A", "RDMA_DEVICES_A_B", "PATH"]
NODES = [uverbs(0), uverbs(1), umad(2), RDMA_CM]


def claims(adjust: nri.ContainerAdjustment) -> Iterator[tuple[str, str]]:
    """Each thing that NRI would have one owner for, by the interface's own rules, over all fields of the message."""
    keyed = {
        "mounts": "destination",
        "env": "key",
        "rlimits": "type",
        "CDI_devices": "name",
        "devices": "path",
        "namespaces": "type",
        "hugepage_limits": "page_size",
    }
    todo: list[tuple[str, object]] = [("", adjust)]
    while todo:
        at, message = todo.pop()
        for field, value in message.ListFields():  # type: ignore[attr-defined] # a message of any type
            name = f"{at}.{field.name}"
            if field.name in keyed:
                yield from ((name, str(getattr(item, keyed[field.name]))) for item in value)
            elif field.message_type is not None and field.message_type.GetOptions().map_entry:
                yield from ((name, key) for key in value)
            elif field.is_repeated:
                raise AssertionError(f"a list that this test does not know: {name}")
            elif field.message_type is not None:
                todo.append((name, value))
            else:
                yield (name, "")


@st.composite
def attached_requests(draw: st.DrawFn) -> tuple[AttachedRequest, ...]:
    """Any requests that can be attached side by side: names are distinct, devices may be the same."""
    names = draw(st.lists(st.sampled_from(["a", "a-b", "b", "0", "x1"]), unique=True, max_size=4))
    return tuple(
        having(
            *(
                nic(number, chars=(uverbs(number), umad(number)))
                for number in sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
            ),
            name=name,
            kinds=draw(st.frozensets(st.sampled_from(CharKind))),
            scope=draw(st.sampled_from([Scope(), Scope(only=frozenset({"a"})), Scope(but=frozenset({"a"}))])),
            memlock=draw(st.sampled_from([None, 1, 2**64 - 1])),
            limits=draw(st.sampled_from([None, RdmaLimits(hca_handles=2), RdmaLimits(hca_objects=30)])),
            netdevs=draw(st.booleans()),
        )
        for name in names
    )


@given(
    attached_requests(),
    st.lists(st.sampled_from(ENV), max_size=8),
    st.lists(st.tuples(st.sampled_from(NODES), st.booleans()), max_size=6),
    st.sampled_from([None, 8 << 20]),
    st.booleans(),
)
def test_nothing_is_claimed_twice_and_what_the_container_has_is_left_alone(
    attached: tuple[AttachedRequest, ...],
    env: list[str],
    nodes: list[tuple[object, bool]],
    memlock: int | None,
    whole: bool,
) -> None:
    container = nri.Container(name="a", env=[f"{name}=theirs" for name in env])
    for node, same in nodes:
        container.linux.devices.add(path=node.path, type="c", major=node.major, minor=node.minor + (not same))  # type: ignore[attr-defined]
    edits = inject(attached, RDMA_CM, "a", env_names(container), device_numbers(container), memlock)
    response = nri.CreateContainerResponse.FromString(create_response(edits, whole_rdma_max=whole).SerializeToString())
    claimed = list(claims(response.adjust))
    assert len(set(claimed)) == len(claimed)
    assert not {name for _field, name in claimed if name.startswith("-")}, "a mark for removal"
    assert not {entry.key for entry in response.adjust.env} & set(env)
    theirs = {device.path: (device.major, device.minor) for device in container.linux.devices}
    assert all(theirs.get(it.path) != (it.major, it.minor) for it in response.adjust.linux.devices)
    assert not response.update
    assert not response.evict


def test_events_are_named_as_their_calls_are() -> None:
    calls = {method.name for method in nri.DESCRIPTOR.services_by_name["Plugin"].methods}
    assert set(EVENTS.values()) == calls - {"Configure", "Synchronize", "Shutdown", "StateChange"}
    assert (EVENTS[nri.RUN_POD_SANDBOX], EVENTS[14]) == ("RunPodSandbox", "ValidateContainerAdjustment")


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "UCX_NET_DEVICES", "RDMA_DEVICES_0", "RDMA_NETDEVS_FAST_NIC"])
def test_a_variable_of_ours_is_found_in_the_bytes_of_its_message(name: str) -> None:
    container = nri.Container(name="main", env=["PATH=/bin", f"{name}=mine", "HOME=/"])
    assert env_names(container) == {name}
    assert has_our_names(nri.CreateContainerRequest(container=container).SerializeToString())


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_TC", "UCX_IB_SL", "MC_IB_TC"])
def test_a_variable_that_we_or_a_pool_may_set_is_seen_where_the_container_sets_it(name: str) -> None:
    container = nri.Container(name="main", env=["PATH=/bin", f"{name}=mine"])
    assert has_our_names(nri.CreateContainerRequest(container=container).SerializeToString())
    assert env_names(container) == {name}


def test_other_variables_are_none_of_ours() -> None:
    container = nri.Container(name="main", env=["PATH=/bin", "OMP_NUM_THREADS=8", "RDMA_CORE=1"])
    assert not has_our_names(nri.CreateContainerRequest(container=container).SerializeToString())


@pytest.mark.parametrize(
    ("rule", "every"),
    [
        ({"allow": True, "type": "a", "access": "rwm"}, True),
        ({"allow": True, "access": "mwr"}, True),
        ({"allow": False, "type": "a", "access": "rwm"}, False),
        ({"allow": True, "type": "c", "access": "rwm"}, False),
        ({"allow": True, "type": "a", "access": "rw"}, False),
        ({"allow": True, "type": "a", "access": "rwm", "major": {"value": 231}}, False),
    ],
)
def test_a_container_that_may_use_every_device_is_known_by_its_rules(rule: dict[str, object], every: bool) -> None:
    deny = {"allow": False, "type": "a", "access": "rwm"}
    linux = nri.LinuxContainer(resources=nri.LinuxResources(devices=[deny, rule]))
    assert is_privileged(nri.Container(linux=linux)) is every


def test_without_limits_the_runtime_is_asked_for_none() -> None:
    assert "rdma.max" not in create_response(ContainerEdits(), whole_rdma_max=True).adjust.linux.resources.unified


@pytest.mark.parametrize(
    ("path", "args", "is_handlers"),
    [
        ("/usr/local/lib/nri-rdma/nri-rdma-hook", ("verify", "--control-socket", "/run/x"), True),
        ("/opt/nri-rdma/bin/nri-rdma-hook", ("verify", "--resource", "a.example/guard"), False),
        ("/opt/nri-rdma/bin/nri-rdma-hook", ("verify", "--pool", "a"), False),
        ("/opt/nri-rdma/bin/nri-rdma-hook", ("verify", "--device", "a.example/a=b"), False),
        ("/opt/nri-rdma/bin/nri-rdma-hook", ("add",), False),
        ("/usr/bin/other", ("verify",), False),
    ],
)
def test_the_guard_of_the_runtime_handler_is_known_by_its_flags(
    path: str, args: tuple[str, ...], is_handlers: bool
) -> None:
    container = nri.Container()
    assert not has_handlers_guard(container)
    container.hooks.create_runtime.add(path=path, args=["nri-rdma-hook", *args])
    assert has_handlers_guard(container) is is_handlers
