"""What a CDI device asks of us: read from its spec, with the devices of its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_interface

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.cdi.meaning import AskedPart, CdiMeaning, Hardware, label_of, meaning
from nri_rdma.cdi.spec import DeviceNode
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError, RequestError
from nri_rdma.model.device import CharKind, Node
from nri_rdma.model.request import (
    DEFAULT_CHAR_KINDS,
    LABEL,
    UNLIMITED,
    DeviceRequest,
    Isolation,
    Mode,
    RdmaLimits,
    Scope,
)
from tests.unit.cdi.specs import FILE, KEY, RDMA_CM, device_in, edits, one, registry, spec_text, uverbs_path
from tests.unit.model.hardware import eight, nic, node, umad, uverbs

NAME = "net.example/vf=vf0"
WHERE = f"CDI device {NAME} ({FILE}) {KEY}"


def means(text: str, on: Node | None = None) -> CdiMeaning:
    return meaning(device_in(text), Hardware.of(on or eight()), KEY)


def asked(text: str, on: Node | None = None) -> DeviceRequest:
    """The one request of a spec."""
    (part,) = means(text, on).asked
    return part.request


def problem(text: str, on: Node | None = None) -> NriRdmaError:
    """What is wrong with a spec that asks; every such error tells file and next step."""
    with pytest.raises((RequestError, PlacementError)) as caught:
        means(text, on)
    assert FILE in caught.value.where
    assert caught.value.hint
    return caught.value


def names(told: CdiMeaning) -> list[str]:
    return [device.name for device in told.devices]


def in_pod(told: CdiMeaning) -> list[tuple[str, Mode | None, str | None]]:
    """Of each request: device, mode, name of the netdev in the pod."""
    return [(part.devices[0].name, part.request.mode, part.request.interface.name) for part in told.asked]


# Which RDMA devices it is


def test_its_rdma_nodes_name_the_devices() -> None:
    told = means(one(RDMA_CM, uverbs_path(3), "/dev/null", uverbs_path(1)))
    assert (told.name, names(told), told.asked) == (NAME, ["mlx5_3", "mlx5_1"], ())


def test_several_nodes_of_a_device_name_it_once() -> None:
    hardware = node((nic(0, chars=(uverbs(0), umad(0))),))
    assert names(means(one(uverbs_path(0), "/dev/infiniband/umad0"), hardware)) == ["mlx5_0"]


def test_a_node_counts_by_where_it_is_on_the_host() -> None:
    moved = {"path": "/dev/infiniband/uverbs0", "hostPath": uverbs_path(5)}
    other = {"path": uverbs_path(6), "hostPath": "/dev/null"}
    assert names(means(spec_text({"vf0": edits(nodes=[moved, other])}))) == ["mlx5_5"]


@pytest.mark.parametrize(("major", "minor", "told"), [(231, 5, (231, 5)), (231, None, None), (None, 5, None)])
def test_a_node_that_the_host_lacks_has_the_numbers_of_its_spec_if_it_has_both(
    major: int | None, minor: int | None, told: tuple[int, int] | None
) -> None:
    assert Hardware.of(eight()).numbers_at(DeviceNode(path=uverbs_path(99), major=major, minor=minor)) == told


def test_nodes_of_the_spec_count_as_those_of_the_device() -> None:
    assert names(means(spec_text({"vf0": edits(uverbs_path(0))}, common=edits(uverbs_path(7))))) == ["mlx5_7", "mlx5_0"]


@pytest.mark.parametrize("paths", [(), (RDMA_CM,), ("/dev/nvidia0",), (uverbs_path(99),)])
def test_a_cdi_device_that_names_none_of_the_nodes_rdma_devices_is_not_ours(paths: tuple[str, ...]) -> None:
    assert means(one(*paths)) == CdiMeaning(name=NAME, devices=())


def test_a_key_on_what_has_nothing_to_do_with_rdma_asks_for_nothing() -> None:
    assert means(one("/dev/nvidia0", key="{no such: grammar}")).asked == ()


def test_without_a_key_a_path_that_the_node_does_not_have_is_left_out() -> None:
    assert names(means(one(uverbs_path(99), uverbs_path(0)))) == ["mlx5_0"]


# Our key


def test_a_key_is_one_request_for_all_its_devices() -> None:
    told = means(one(RDMA_CM, uverbs_path(0), uverbs_path(1), key="{memlock: unlimited}"))
    request = DeviceRequest(name="vf0", where=WHERE, count=2, memlock=UNLIMITED)
    assert told.asked == (AskedPart(request=request, devices=told.devices),)
    assert names(told) == ["mlx5_0", "mlx5_1"]


@pytest.mark.parametrize(
    ("key", "differs"),
    [
        ("{}", {}),
        ("", {}),
        ("{name: rail}", {"name": "rail"}),
        ("{mode: exclusive}", {"mode": Mode.EXCLUSIVE}),
        ("{mode: shared}", {"mode": Mode.SHARED}),
        ("{isolation: hard}", {"isolation": Isolation.HARD}),
        ("{devices: [uverbs]}", {"char_kinds": frozenset({CharKind.UVERBS})}),
        ("{memlock: 65536}", {"memlock": 65536}),
        ("{limits: {hcaHandles: 8, hcaObjects: 100}}", {"limits": RdmaLimits(hca_handles=8, hca_objects=100)}),
        ('{"memlock": "unlimited"}', {"memlock": UNLIMITED}),
    ],
)
def test_the_key_has_the_words_of_an_annotation(key: str, differs: Mapping[str, object]) -> None:
    plain = DeviceRequest(name="vf0", where=WHERE)
    assert plain.scope == Scope()
    assert plain.char_kinds == DEFAULT_CHAR_KINDS
    assert asked(one(uverbs_path(0), key=key)) == replace(plain, **differs)  # type: ignore[arg-type]  # by name


def test_the_interface_is_asked_as_in_an_annotation() -> None:
    interface = asked(
        one(uverbs_path(0), key="{interface: {name: net1, mtu: 9000, addresses: [10.0.0.2/24]}}")
    ).interface
    assert (interface.name, interface.mtu) == ("net1", 9000)
    assert interface.addresses == ((ip_interface("10.0.0.2/24"),),)


@pytest.mark.parametrize(
    "key",
    ["pool: fast", "match: {device: mlx5_0}", "count: 2", "containers: [a]", "align: gpu", 'gpus: ["0000:01:00.0"]'],
)
def test_what_chooses_devices_or_containers_is_refused(key: str) -> None:
    error = problem(one(uverbs_path(0), key=f"{{{key}}}"))
    word = key.partition(":")[0]
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, f"{WHERE}.{word}")


@pytest.mark.parametrize(
    ("key", "code", "place"),
    [
        ("2", ErrorCode.ANNOTATION_VALUE, ""),
        ("fast", ErrorCode.ANNOTATION_VALUE, ""),
        ("[{}]", ErrorCode.ANNOTATION_VALUE, ""),
        ("{memlok: 1}", ErrorCode.ANNOTATION_UNKNOWN_KEY, ""),
        ("{memlock: much}", ErrorCode.ANNOTATION_VALUE, ".memlock"),
        ("{memlock: 1, memlock: 2}", ErrorCode.ANNOTATION_DUPLICATE_KEY, None),
        ("{", ErrorCode.ANNOTATION_SYNTAX, None),
        ("{interface: {name: net1}}", ErrorCode.ANNOTATION_VALUE, ".interface.name"),
        ("{interface: {addresses: [10.0.0.2/24]}}", ErrorCode.ANNOTATION_VALUE, ".interface.addresses"),
    ],
)
def test_a_key_that_cannot_be_read_is_refused_with_its_place(key: str, code: ErrorCode, place: str | None) -> None:
    """The spec has two devices, so that one name or one list of addresses is not enough."""
    error = problem(one(uverbs_path(0), uverbs_path(1), key=key))
    assert error.code is code
    assert place is None or error.where == f"{WHERE}{place}"


def test_a_devices_key_counts_instead_of_its_specs() -> None:
    text = spec_text(
        {"vf0": edits(uverbs_path(0)), "vf1": edits(uverbs_path(1))},
        {"vf0": {KEY: "{mode: shared}"}},
        common_annotations={KEY: "{memlock: unlimited, mode: exclusive}"},
    )
    devices = registry(text).devices
    hardware = Hardware.of(eight())
    found = {name: meaning(device, hardware, KEY).asked[0].request for name, device in devices.items()}
    own, common = found["net.example/vf=vf0"], found["net.example/vf=vf1"]
    assert (own.mode, own.memlock) == (Mode.SHARED, None)
    assert (common.mode, common.memlock) == (Mode.EXCLUSIVE, UNLIMITED)


def test_another_prefix_is_another_key() -> None:
    device = device_in(one(uverbs_path(0), key="{memlock: unlimited}"))
    assert meaning(device, Hardware.of(eight()), "rdma.example").asked == ()


@pytest.mark.parametrize("key", [f"{KEY}/pod", f"{KEY}/container.main"])
@pytest.mark.parametrize("at_spec", [False, True])
def test_a_pods_key_on_a_cdi_device_is_refused_instead_of_being_missed(key: str, at_spec: bool) -> None:
    annotations = {key: "{memlock: unlimited}"}
    text = spec_text(
        {"vf0": edits(uverbs_path(0))},
        None if at_spec else {"vf0": annotations},
        common_annotations=annotations if at_spec else None,
    )
    error = problem(text)
    assert error.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert KEY in error.hint


def test_a_pods_key_on_what_has_nothing_to_do_with_rdma_is_not_ours() -> None:
    text = spec_text({"vf0": edits("/dev/nvidia0")}, {"vf0": {f"{KEY}/pod": "{memlock: unlimited}"}})
    assert means(text).devices == ()


def test_a_key_for_a_device_that_the_node_does_not_have_is_refused() -> None:
    error = problem(one(uverbs_path(0), uverbs_path(99), key="{}"))
    assert (error.code, "uverbs99" in error.what) == (ErrorCode.DEVICE_UNKNOWN, True)


def test_a_long_name_does_not_make_a_long_error() -> None:
    error = problem(one(uverbs_path(0), key="{x: 1}", name="a" * 5000))
    assert len(error.where) < 300


def test_a_file_with_bytes_that_are_no_text_can_be_told() -> None:
    """The error goes to the runtime, which takes UTF-8 only."""
    device = replace(device_in(one(uverbs_path(0), key="{x: 1}")), file="/etc/cdi/\udcff.json")
    with pytest.raises(RequestError) as caught:
        meaning(device, Hardware.of(eight()), KEY)
    assert "/etc/cdi/\\udcff.json" in str(caught.value).encode().decode()


# netDevices


def test_a_netdev_of_an_rdma_device_moves_under_its_name() -> None:
    told = means(one(RDMA_CM, uverbs_path(2), netdevs={"eth2": "net1"}))
    assert in_pod(told) == [("mlx5_2", Mode.EXCLUSIVE, "net1")]
    (part,) = told.asked
    assert (part.request.name, part.request.count, part.request.memlock) == ("vf0", 1, None)


def test_a_netdev_alone_names_its_device_and_brings_no_nodes() -> None:
    told = means(one(netdevs={"eth2": "net1"}))
    assert names(told) == ["mlx5_2"]
    assert told.asked[0].request.char_kinds == frozenset()


def test_without_a_key_a_container_gets_no_more_nodes_than_the_spec_has() -> None:
    assert asked(one(uverbs_path(2), netdevs={"eth2": "net1"})).char_kinds == {CharKind.UVERBS}
    assert asked(one(RDMA_CM, uverbs_path(2), netdevs={"eth2": "net1"})).char_kinds == DEFAULT_CHAR_KINDS


def test_several_netdevs_are_a_request_each_with_names_of_their_own() -> None:
    told = means(one(uverbs_path(0), uverbs_path(1), key="{name: rail}", netdevs={"eth1": "b", "eth0": "a"}))
    assert in_pod(told) == [("mlx5_0", Mode.EXCLUSIVE, "a"), ("mlx5_1", Mode.EXCLUSIVE, "b")]
    assert [part.request.name for part in told.asked] == ["rail-0", "rail-1"]
    assert [part.request.count for part in told.asked] == [1, 1]


def test_a_key_adds_to_each_netdev_what_it_says() -> None:
    interface = "{mtu: 4000, addresses: [[10.0.0.2/24], [10.1.0.2/24]]}"
    key = f"{{memlock: unlimited, limits: {{hcaHandles: 4}}, interface: {interface}}}"
    told = means(one(uverbs_path(0), uverbs_path(1), key=key, netdevs={"eth0": "a", "eth1": "b"}))
    found = [(it.request.memlock, it.request.limits, it.request.interface) for it in told.asked]
    assert [(memlock, limits) for memlock, limits, _ in found] == [(UNLIMITED, RdmaLimits(hca_handles=4))] * 2
    assert [(it.name, it.mtu, str(it.addresses[0][0])) for _, _, it in found] == [
        ("a", 4000, "10.0.0.2/24"),
        ("b", 4000, "10.1.0.2/24"),
    ]


def test_a_device_without_a_netdev_in_the_spec_stays_as_its_key_says() -> None:
    told = means(one(uverbs_path(0), uverbs_path(1), key="{memlock: unlimited}", netdevs={"eth1": "b"}))
    assert in_pod(told) == [("mlx5_0", None, None), ("mlx5_1", Mode.EXCLUSIVE, "b")]
    told = means(one(uverbs_path(0), uverbs_path(1), netdevs={"eth1": "b"}))
    assert in_pod(told) == [("mlx5_1", Mode.EXCLUSIVE, "b")]
    assert names(told) == ["mlx5_0", "mlx5_1"]


def test_a_name_that_both_give_is_no_contradiction() -> None:
    key = "{mode: exclusive, interface: {name: net1, addresses: [10.0.0.2/24]}}"
    interface = asked(one(uverbs_path(0), key=key, netdevs={"eth0": "net1"})).interface
    assert (interface.name, str(interface.addresses[0][0])) == ("net1", "10.0.0.2/24")


@pytest.mark.parametrize(
    ("key", "place"),
    [("{mode: shared}", ".mode"), ("{interface: {name: net2}}", ".interface.name")],
)
def test_a_key_that_contradicts_the_netdevs_is_refused(key: str, place: str) -> None:
    error = problem(one(uverbs_path(0), key=key, netdevs={"eth0": "net1"}))
    assert (error.code, error.where) == (ErrorCode.CDI_VALUE, f"{WHERE}{place}")


def test_a_name_for_all_contradicts_names_for_each() -> None:
    key = '{interface: {name: "net%d"}}'
    error = problem(one(uverbs_path(0), uverbs_path(1), key=key, netdevs={"eth0": "a", "eth1": "b"}))
    assert (error.code, error.where) == (ErrorCode.CDI_VALUE, f"{WHERE}.interface.name")


@pytest.mark.parametrize("name", ["a/b", "..", "sixteen-letters-", "net%d", "all", "a b"])
def test_a_name_that_no_netdev_can_have_is_refused(name: str) -> None:
    assert problem(one(uverbs_path(0), netdevs={"eth0": name})).code is ErrorCode.CDI_VALUE


def test_a_netdev_that_is_no_rdma_devices_is_the_runtimes_business() -> None:
    assert means(one(uverbs_path(0), netdevs={"ens9": "net%d"})).asked == ()
    told = means(one(uverbs_path(0), netdevs={"ens9": "net0", "eth0": "net1"}))
    assert in_pod(told) == [("mlx5_0", Mode.EXCLUSIVE, "net1")]


def test_a_netdev_that_is_away_is_told_beside_the_device() -> None:
    in_a_pod = node((replace(nic(0), netdevs=()), nic(1)))
    moved_with_its_device = node((nic(1),))
    for on, device in ((in_a_pod, ["mlx5_0"]), (moved_with_its_device, [])):
        told = means(one(uverbs_path(0), netdevs={"eth0": "net1"}), on)
        assert told.away is not None
        assert (told.away.code, "eth0" in told.away.what, names(told)) == (ErrorCode.DEVICE_UNKNOWN, True, device)
        assert means(one(uverbs_path(0)), on).away is None


def test_a_netdev_beside_a_device_that_never_has_one_is_the_runtimes_business() -> None:
    efa = replace(nic(0), netdevs=(), node_type="unspecified")
    assert means(one(uverbs_path(0), netdevs={"ens6": "net1"}), node((efa,))).away is None


def test_with_a_key_a_netdev_that_the_node_does_not_have_is_refused() -> None:
    error = problem(one(uverbs_path(0), key="{}", netdevs={"ens9": "net0"}))
    assert (error.code, "ens9" in error.what) == (ErrorCode.DEVICE_UNKNOWN, True)


def test_netdevs_ask_so_that_a_missing_device_is_refused() -> None:
    assert problem(one(uverbs_path(99), netdevs={"eth0": "net1"})).code is ErrorCode.DEVICE_UNKNOWN


def test_one_name_for_the_netdev_of_the_spec_and_that_of_the_device_is_refused() -> None:
    text = spec_text({"vf0": edits(netdevs={"eth0": "net1"})}, common=edits(netdevs={"eth1": "net1"}))
    assert problem(text).code is ErrorCode.CDI_VALUE


def test_two_netdevs_of_one_rdma_device_are_refused() -> None:
    first, second = nic(0), nic(1)
    both = replace(first, netdevs=(*first.netdevs, *second.netdevs))
    error = problem(one(uverbs_path(0), netdevs={"eth0": "a", "eth1": "b"}), node((both,)))
    assert (error.code, "mlx5_0 has a netdev" in error.what) == (ErrorCode.CDI_VALUE, True)


# Names of requests


@pytest.mark.parametrize(
    ("device", "label"),
    [("mlx5_0", "mlx5-0"), ("VF.3:x", "vf-3-x"), ("0", "0"), ("a" * 80, "a" * 63), ("é", "cdi"), ("", "cdi")],
)
def test_a_request_has_the_devices_name_as_a_label(device: str, label: str) -> None:
    assert label_of(f"net.example/vf={device}") == label


@given(st.text(max_size=100))
def test_any_name_makes_a_label(name: str) -> None:
    assert LABEL.fullmatch(label_of(name))


@pytest.mark.parametrize("count", [2, 8])
def test_names_of_several_requests_are_labels_and_differ(count: int) -> None:
    paths = [uverbs_path(number) for number in range(count)]
    netdevs = {f"eth{number}": f"net{number}" for number in range(count)}
    told = means(one(*paths, key=f"{{name: {'a' * 63}}}", netdevs=netdevs))
    labels = [part.request.name for part in told.asked]
    assert len(set(labels)) == count
    assert all(LABEL.fullmatch(label) for label in labels)


# Strangers


@given(
    key=st.none() | st.text(max_size=60) | st.sampled_from(["{}", "{mode: exclusive}", "{interface: {name: a}}", "2"]),
    paths=st.lists(st.sampled_from([uverbs_path(0), uverbs_path(1), uverbs_path(9), RDMA_CM, "/dev/null"]), max_size=4),
    netdevs=st.dictionaries(
        st.sampled_from(["eth0", "eth1", "ens9"]), st.sampled_from(["a", "b", "a%d", "/", "lo"]), max_size=3
    ),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_spec_says_becomes_requests_for_its_devices_or_a_refusal(
    key: str | None, paths: list[str], netdevs: dict[str, str]
) -> None:
    if len(set(netdevs.values())) < len(netdevs):  # a spec with that is refused before
        netdevs = {}
    try:
        told = means(one(*paths, key=key, netdevs=netdevs))
    except NriRdmaError as error:
        assert error.hint
        assert error.where
        return
    for part in told.asked:
        assert part.request.count == len(part.devices) > 0
        assert set(part.devices) <= set(told.devices)
    given_devices = [device.id for part in told.asked for device in part.devices]
    assert len(given_devices) == len(set(given_devices))
