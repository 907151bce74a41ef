"""The grammar of a request: what is understood, and what is refused where it stands."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.device import CharKind, LinkLayer, Protocol
from nri_rdma.model.network import (
    SCOPE_LINK,
    EthtoolConfig,
    NeighbourConfig,
    NextHop,
    RouteConfig,
    RouteType,
    RoutingRule,
)
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import (
    UNLIMITED,
    Align,
    AlignTo,
    DeviceRequest,
    InterfaceConfig,
    Isolation,
    Match,
    Mode,
    RdmaLimits,
    Scope,
    Use,
)
from nri_rdma.model.selector import FunctionsOf, Selector
from nri_rdma.model.userspace import UserspaceCheck
from nri_rdma.text.forms import StandsIn, names_of
from nri_rdma.text.pools import POOL_KEYS
from nri_rdma.text.requests import ALIGN_KEYS, INTERFACE_KEYS, LIMITS_KEYS, MATCH_KEYS, POOL_ALONE, REQUEST_KEYS
from tests.unit.text.asking import POD, VALUE, refusal, requests
from tests.unit.text.request_cases import FULL, IN_VRF, REFUSED


def only(text: str) -> DeviceRequest:
    (request,) = requests(text)
    return request


def test_a_number_is_a_count_from_the_default_pool() -> None:
    assert only("2") == DeviceRequest(name="0", where=POD, count=2, word=True)


def test_a_word_is_a_pool() -> None:
    assert only("fast") == DeviceRequest(name="0", where=POD, pool="fast", word=True)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "true", "1025", "0x2", "a b", "_x", "-"])
def test_other_words_are_refused(text: str) -> None:
    assert refusal(text).code is ErrorCode.ANNOTATION_VALUE


def test_one_mapping_is_a_list_of_one() -> None:
    assert only("{pool: fast}").pool == only("[{pool: fast}]").pool


def test_an_empty_mapping_is_one_device_of_the_default_pool() -> None:
    assert only("{}") == DeviceRequest(name="0", where=POD)


def test_a_full_request_is_read() -> None:
    assert only(json.dumps([FULL])) == DeviceRequest(
        name="rails",
        where=f"{POD}[0]",
        pool="fast",
        match=Match(
            device="mlx5_2",
            netdev="eth2",
            pci=PciAddress(0, 0x10, 0, 0),
            vendor="15b3",
            device_id=("101d",),
            driver="mlx5_core",
            pf_name=(FunctionsOf(function="ens1f0", numbers=((0, 3),)),),
            link_layer=LinkLayer.INFINIBAND,
            protocol=(Protocol.IB,),
            pkey=(0x8001,),
            numa_node=0,
            min_speed_gbps=400,
            exclude=(Selector(device=("mlx5_0", "mlx5_1")),),
        ),
        count=2,
        isolation=Isolation.HARD,
        use=Use.STORAGE,
        prove=True,
        userspace=UserspaceCheck.OFF,
        roce_version=1,
        scope=Scope(only=frozenset({"trainer"})),
        align=Align(to=AlignTo.GPU, strict=True),
        gpus=(PciAddress(0, 0x1B, 0, 0), PciAddress(0, 0x1C, 0, 0)),
        mode=Mode.EXCLUSIVE,
        interface=InterfaceConfig(
            name="rail%d",
            mtu=9000,
            addresses=((ip_interface("10.0.0.2/24"),), (ip_interface("10.0.1.2/24"), ip_interface("fd00::2/64"))),
            macs=("02:00:5e:10:00:02", "02:00:5e:10:00:03"),
            gso_max_size=65536,
            gro_max_size=65537,
            gso_ipv4_max_size=65538,
            gro_ipv4_max_size=65539,
            disables_ebpf=True,
            forwarding=True,
            arp_ignore=1,
            arp_announce=2,
            enable_ipv6=True,
            inherit=False,
        ),
        routes=(
            RouteConfig(
                destination=IPv4Network("10.0.1.0/24"), scope=SCOPE_LINK, source=IPv4Address("10.0.1.2"), metric=7
            ),
            RouteConfig(
                destination=IPv4Network("0.0.0.0/0"),
                gateway=IPv4Address("10.0.0.1"),
                source=IPv4Address("10.0.0.2"),
                table=100,
                metric=5,
                onlink=True,
                mtu=1400,
                advmss=1300,
            ),
            RouteConfig(
                destination=IPv4Network("10.9.0.0/16"),
                multipath=(
                    NextHop(gateway=IPv4Address("10.0.0.1")),
                    NextHop(gateway=IPv4Address("10.0.0.3"), weight=2),
                ),
            ),
            RouteConfig(destination=IPv4Network("10.8.0.0/16"), type=RouteType.BLACKHOLE),
        ),
        rules=(
            RoutingRule(
                priority=100,
                table=100,
                version=4,
                source=IPv4Network("10.0.0.0/24"),
                destination=IPv4Network("10.9.0.0/16"),
                fwmark=1,
                fwmask=255,
                iif="lo",
                oif="rail0",
                invert=True,
                suppress_prefix_length=0,
            ),
            RoutingRule(priority=0, table=100),
        ),
        neighbours=(NeighbourConfig(destination=IPv4Address("10.0.0.9"), mac="02:00:5e:10:00:01"),),
        ethtool=EthtoolConfig(
            features=(("tx-tcp-segmentation", False), ("rx-gro", True)), private_flags=(("rx cqe moder", True),)
        ),
        char_kinds=frozenset({CharKind.UVERBS, CharKind.UMAD}),
        memlock=1 << 30,
        limits=RdmaLimits(hca_handles=8, hca_objects=10000),
    )


def test_yaml_without_quotes_reads_as_json_with_them() -> None:
    text = """
    - match: {pci: 0000:10:00.0, vendor: 14e4}   # a float to YAML, a vendor to us
      gpus: [0000:1b:00.0]
      interface:
        name: rdma%d
        addresses: [10.0.0.2/24, fd00::2/64]
    """
    request = only(text)
    assert request.match == Match(pci=PciAddress(0, 0x10, 0, 0), vendor="14e4")
    assert request.gpus == (PciAddress(0, 0x1B, 0, 0),)
    assert request.interface.addresses == ((ip_interface("10.0.0.2/24"), ip_interface("fd00::2/64")),)


def test_the_example_of_the_keys_has_every_key() -> None:
    """Whoever adds a key to the grammar adds it to FULL, which is read above."""
    known_here = tuple(key.name for key in REQUEST_KEYS if StandsIn.POD not in key.refused_in)
    keys = tuple(name for name in known_here if name != "perGPU")  # it is in count's place
    step = "write the key into FULL, in request_cases.py, in the order of the grammar, and a row into test_effects.py"
    assert tuple(FULL) == keys, step
    for key, known in {
        "match": MATCH_KEYS,
        "align": ALIGN_KEYS,
        "interface": INTERFACE_KEYS,
        "limits": LIMITS_KEYS,
    }.items():
        part = FULL[key]
        assert isinstance(part, dict)
        assert tuple(part | (IN_VRF if key == "interface" else {})) == names_of(known), f"{key}: {step}"


# Refused values


@pytest.mark.parametrize(("text", "where"), REFUSED)
def test_a_value_that_cannot_be_is_refused_where_it_stands(text: str, where: str) -> None:
    error = refusal(text)
    assert (error.code, error.where) == (ErrorCode.ANNOTATION_VALUE, POD + where)
    assert error.hint


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("{cuont: 1}", "count"),
        ("{Name: a}", "name"),
        ("{match: {link_layer: x}}", "linkLayer"),
        ("{interface: {adresses: []}}", "addresses"),
        ("{limits: {hca_handle: 1}}", "hcaHandles"),
        ("{align: {too: gpu}}", "to"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(text: str, nearest: str) -> None:
    error = refusal(text)
    assert error.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert error.hint.startswith(f"write {nearest}; the keys are ")


def test_an_unknown_key_that_is_near_to_none_names_them_all() -> None:
    assert refusal("{zzz: 1}").hint == f"the keys are {', '.join(FULL)}".replace("count,", "count, perGPU,")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{exclude: {device: mlx5_0}}", "write it there: match: {exclude: ...}"),
        ("{pkey: 0x8001}", "write it there: match: {pkey: ...}"),
        ("{strict: true}", "write it there: align: {to: gpu, strict: ...}"),
        ("{to: numa}", "write it there: align: {to: ...}"),
        ("{env: {NCCL_IB_TC: '3'}}", "write it into env of the container, or ask for a pool"),
        ("{downPorts: refuse}", "leave it out, or ask for a pool of the node that has it (pool: NAME)"),
        ("{match: {rootDevice: pci0000:3a}}", "ask for a pool of the node whose select has it (pool: NAME)"),
        ("{count: 2, perGPU: 1}", "write one of count and perGPU"),
        ("{perGPU: 1, align: none}", "write count, or another align"),
        ("{mtu: 4200}", "write it there: interface: {mtu: ...}"),
        ("{interface: {routes: []}}", "write it one level up, beside interface"),
        ("{match: {count: 2}}", "write it one level up, beside match"),
        ("{perGPU: 1, interface: {addresses: [10.0.0.2/24]}}", "write the number: count: N"),
    ],
)
def test_what_a_request_says_elsewhere_or_not_at_all_is_told_with_the_place(text: str, hint: str) -> None:
    assert refusal(text).hint.startswith(hint)


@pytest.mark.parametrize("number", ["count: all", "perGPU: 1"])
def test_one_name_is_not_for_a_number_of_devices_that_is_not_known(number: str) -> None:
    error = refusal(f"{{{number}, mode: exclusive, interface: {{name: rail0}}}}")
    assert error.what == "'rail0' is one name, but the request is for several devices"


def test_keys_that_only_pools_have_are_keys_of_pools_and_none_of_requests() -> None:
    assert set(POOL_ALONE) <= set(names_of(POOL_KEYS)) - set(names_of(REQUEST_KEYS))


@pytest.mark.parametrize("vendor", ["8086", "14e4", "15b3", "'0x15b3'", "[8086, 14e4]"])
def test_a_vendor_is_written_in_exclude_as_in_match(vendor: str) -> None:
    wanted, excluded = (
        only(f"{{match: {{vendor: {vendor}, exclude: {{vendor: {vendor}}}}}}}").match.vendor,
        only(f"{{match: {{exclude: {{vendor: {vendor}}}}}}}").match.exclude,
    )
    assert excluded == (Selector(vendor=wanted if isinstance(wanted, tuple) else (wanted or "",)),)


def test_a_list_in_match_is_a_choice_and_a_speed_is_read_as_ip_writes_it() -> None:
    match = only("{match: {device: [mlx5_0, mlx5_1], numaNode: [0, 1], minSpeedGbps: 200G}}").match
    assert match == Match(device=("mlx5_0", "mlx5_1"), numa_node=(0, 1), min_speed_gbps=200)


def test_so_many_devices_per_gpu_are_no_number_yet() -> None:
    request = only("{perGPU: 2, mode: exclusive, interface: {name: rail%d}}")
    assert (request.count, request.per_gpu, request.count_words) == (None, 2, "2 per GPU")


def test_keys_of_later_versions_are_unknown() -> None:
    assert refusal("{profile: {features: {}}}").code is ErrorCode.ANNOTATION_UNKNOWN_KEY


@pytest.mark.parametrize("address", ["10.0.0.0/31", "10.0.0.1/31", "10.0.0.9/32", "fd00::/64", "169.254.1.1/16"])
def test_addresses_that_look_odd_are_allowed(address: str) -> None:
    assert only(f"{{interface: {{addresses: ['{address}']}}}}").interface.addresses == ((ip_interface(address),),)


def test_a_name_of_fifteen_characters_is_allowed() -> None:
    assert only(f"{{interface: {{name: {'a' * 15}}}}}").interface.name == "a" * 15


def test_a_template_of_fifteen_characters_has_room_for_two_digits() -> None:
    name = only(f"{{interface: {{name: {'a' * 13}%d}}, count: 16}}").interface.name
    assert name is not None
    assert len(name.replace("%d", "15")) == 15


def test_unlimited_memlock_is_the_largest_number() -> None:
    assert only("{memlock: unlimited}").memlock == UNLIMITED


@pytest.mark.parametrize(
    ("written", "number"), [("1Gi", 1 << 30), ("'1Gi'", 1 << 30), ("1G", 10**9), ("1.5Gi", 3 << 29), ("4096", 4096)]
)
def test_memlock_is_a_number_of_bytes_or_a_quantity_as_kubernetes_writes_it(written: str, number: int) -> None:
    assert only(f"{{memlock: {written}}}").memlock == number


@pytest.mark.parametrize(
    ("written", "word"),
    [("0", "index"), ("'1'", "index"), ("GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76", "UUID"), ("MIG-5b", "UUID")],
)
def test_another_name_of_a_gpu_is_refused_with_what_to_write(written: str, word: str) -> None:
    with pytest.raises(RequestError) as refusal:
        only(f"{{gpus: [{written}]}}")
    assert word in refusal.value.what
    assert "leave gpus out" in refusal.value.hint
    assert "0000:1b:00.0" in refusal.value.hint


def test_all_devices_is_no_count() -> None:
    assert only("{count: all}").count is None


def test_one_limit_alone_is_allowed() -> None:
    assert only("{limits: {hcaHandles: 2}}").limits == RdmaLimits(hca_handles=2)


def test_an_mtu_that_ipv6_cannot_have_is_refused_with_the_addresses() -> None:
    error = refusal('{interface: {mtu: 1279, addresses: ["10.0.0.1/24", "fd00::1/64"]}}')
    assert error.where.endswith("interface.mtu")
    assert error.what == "1279 is too small for the IPv6 addresses of interface.addresses"
    assert error.hint == "write 1280 or more, or leave the IPv6 addresses out"
    assert only('{interface: {mtu: 1280, addresses: ["fd00::1/64"]}}').interface.mtu == 1280
    assert only('{interface: {mtu: 68, addresses: ["10.0.0.1/24"]}}').interface.mtu == 68


def test_a_refusal_quotes_little_of_what_was_written() -> None:
    error = refusal("{pool: '" + "x\\n" * 80 + "'}")
    assert len(error.what) < 100
    assert "\n" not in str(error)


@given(st.dictionaries(st.sampled_from(names_of(REQUEST_KEYS)), VALUE, max_size=4))
def test_no_request_raises_anything_but_a_request_error(request_fields: dict[str, object]) -> None:
    try:
        requests(json.dumps(request_fields))
    except RequestError as error:
        assert error.where.startswith(POD)


def test_off_that_kubectl_made_false_of_is_to_be_written_in_quotes() -> None:
    assert 'off in quotes ("off")' in refusal("{userspace: false}").hint
