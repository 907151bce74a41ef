"""What an administrator writes about pools and rules: what is taken, and how what is wrong is named."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.device import CharKind, LinkLayer, Protocol
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.pool import Pool, PoolDoor, Rule
from nri_rdma.model.request import Mode, RdmaLimits, Use
from nri_rdma.model.selector import FunctionsOf, Selector
from nri_rdma.model.userspace import UserspaceCheck
from nri_rdma.text.nodes import node_of
from nri_rdma.text.pools import POOL_KEYS, RULE_KEYS, check_rules, read_adoption, read_pools, read_rules
from nri_rdma.text.selectors import SELECTOR_KEYS

EVERY_CONDITION = """
device = "mlx5_0"
netdev = ["ens1f0", "ens1f1"]
pci = "3b:00.0"
vendor = "0x15B3"
deviceID = ["101d", "101E"]
driver = "mlx5_core"
pfName = ["ens1f0#0-3,7", "ens2f0"]
rootDevice = ["0000:3b:00.0#1", "0000:3a:00.0", "pci0000:ae"]
linkLayer = "Ethernet"
protocol = ["roce", "iwarp"]
pkey = [0x8001, "0x0002"]
numaNode = 0
speedGbps = 100
minSpeedGbps = 25
"""


def pools(text: str) -> tuple[Pool, ...]:
    return read_pools(node_of(tomllib.loads(text)["pools"]))


def rules(text: str) -> tuple[Rule, ...]:
    return read_rules(node_of(tomllib.loads(text)["rules"]))


def refusal(text: str) -> RequestError:
    table = tomllib.loads(text)
    with pytest.raises(RequestError) as caught:
        known = read_pools(node_of(table["pools"])) if "pools" in table else ()
        if "rules" in table:
            check_rules(known, read_rules(node_of(table["rules"])))
    assert caught.value.hint
    return caught.value


def test_every_condition_is_read() -> None:
    (pool,) = pools(f'[pools.a]\nmodes = ["shared"]\n[pools.a.select]\n{EVERY_CONDITION}')
    assert pool.select == (
        Selector(
            device=("mlx5_0",),
            netdev=("ens1f0", "ens1f1"),
            pci=(PciAddress(0, 0x3B, 0, 0),),
            vendor=("15b3",),
            device_id=("101d", "101e"),
            driver=("mlx5_core",),
            pf_name=(FunctionsOf(function="ens1f0", numbers=((0, 3), (7, 7))), FunctionsOf(function="ens2f0")),
            root_device=(
                FunctionsOf(function="0000:3b:00.0", numbers=((1, 1),)),
                FunctionsOf(function="0000:3a:00.0"),
                FunctionsOf(function="pci0000:ae"),
            ),
            link_layer=(LinkLayer.ETHERNET,),
            protocol=(Protocol.ROCE, Protocol.IWARP),
            pkey=(0x8001, 0x2),
            numa_node=(0,),
            speed_gbps=(100,),
            min_speed_gbps=25,
        ),
    )


def test_a_pool_needs_its_modes_only() -> None:
    assert pools('[pools.a]\nmodes = ["shared"]') == (Pool(name="a", where="pools.a", modes=(Mode.SHARED,)),)


def test_every_key_of_a_pool_is_read() -> None:
    (pool,) = pools(
        """
        [pools.rails]
        select = [{ vendor = "15b3" }, { driver = "irdma" }]
        exclude = { device = "mlx5_0" }
        modes = ["exclusive"]
        door = "annotations"
        requireIsolation = true
        prove = true
        use = "storage"
        userspace = "off"
        roceVersion = 1
        env = { NCCL_IB_TC = "106", UCX_IB_TRAFFIC_CLASS = "106" }
        limits = { hcaHandles = 8 }
        maxLimits = { hcaHandles = 16, hcaObjects = 1000 }
        """
    )
    assert pool == Pool(
        name="rails",
        where="pools.rails",
        select=(Selector(vendor=("15b3",)), Selector(driver=("irdma",))),
        exclude=(Selector(device=("mlx5_0",)),),
        modes=(Mode.EXCLUSIVE,),
        door=PoolDoor.ANNOTATIONS,
        requires_isolation=True,
        use=Use.STORAGE,
        prove=True,
        userspace=UserspaceCheck.OFF,
        roce_version=1,
        env=(("NCCL_IB_TC", "106"), ("UCX_IB_TRAFFIC_CLASS", "106")),
        limits=RdmaLimits(hca_handles=8),
        max_limits=RdmaLimits(hca_handles=16, hca_objects=1000),
    )


def test_a_pool_of_claims_needs_its_door_and_its_modes_only() -> None:
    (pool,) = pools('[pools.a]\nmodes = ["shared"]\ndoor = "claims"')
    assert pool == Pool(name="a", where="pools.a", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)


def test_every_key_of_a_rule_is_read() -> None:
    (rule,) = rules(
        """
        [[rules]]
        name = "training"
        namespaces = ["train-*"]
        runtimeHandlers = ["", "runc"]
        podLabels = { team = "ml", "example.com/tier" = ["gold", "silver"] }
        pools = ["rails"]
        allow = true
        modes = ["exclusive"]
        devices = ["uverbs", "umad"]
        interface = []
        maxLimits = { hcaHandles = 4 }
        """
    )
    assert rule == Rule(
        name="training",
        where="rules[0]",
        namespaces=("train-*",),
        runtime_handlers=("", "runc"),
        pod_labels=(("team", ("ml",)), ("example.com/tier", ("gold", "silver"))),
        pools=("rails",),
        modes=(Mode.EXCLUSIVE,),
        char_kinds=frozenset({CharKind.UVERBS, CharKind.UMAD}),
        interface=frozenset(),
        max_limits=RdmaLimits(hca_handles=4),
    )


def test_rules_without_names_are_called_by_their_numbers() -> None:
    assert [rule.name for rule in rules("[[rules]]\n[[rules]]")] == ["1", "2"]


A = '[pools.a]\nmodes = ["shared"]\n'


@pytest.mark.parametrize("name", ["nvidia.com", "k8s.device-plugin.example.com", "v-x_y"])
def test_a_vendor_is_named_as_in_the_name_of_its_cdi_devices(name: str) -> None:
    text = f'[adopt.vendors."{name}"]\nmode = "enforce"\n'
    adoption = read_adoption(node_of(tomllib.loads(text)["adopt"]))
    assert [*adoption.vendors] == [name]


@pytest.mark.parametrize("name", ["", "nvidia.com/gpu", "nvidia com", "_nvidia", "nvidia\\n"])
def test_what_is_no_vendors_name_is_refused(name: str) -> None:
    text = f'[adopt.vendors."{name}"]\nmode = "enforce"\n'
    with pytest.raises(RequestError, match="is no vendor's name"):
        read_adoption(node_of(tomllib.loads(text)["adopt"]))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("pools = 1", "pools", "'1' is no table of pools"),
        ("[pools]", "pools", "a mapping is no table of pools"),
        ("[pools.a]", "pools.a", "modes is missing"),
        (
            '[pools.a]\nmodes = ["exclusive"]\ndoor = "resource"\nresource = "rdma/x"\nshares = 4',
            "pools.a.modes",
            "the devices of shares are always shared",
        ),
        ("pools.a = 1", "pools.a", "'1' is not a mapping"),
        ('[pools.1a]\nmodes = ["shared"]', "pools.1a", "'1a' is not allowed"),
        ("[pools.a]\nmodes = []", "pools.a.modes", "the list is empty"),
        ('[pools.a]\nmodes = ["both"]', "pools.a.modes[0]", "'both' is not allowed"),
        ('[pools.a]\nmodes = ["shared", "shared"]', "pools.a.modes[1]", "shared is there twice"),
        (f'{A}door = "dra"', "pools.a.door", "'dra' is not allowed"),
        ('[pools.A_1]\nmodes = ["shared"]\ndoor = "claims"', "pools.A_1", "its name is that of a DeviceClass"),
        (f"{A}selct = {{}}", "pools.a", "unknown key 'selct'"),
        (f"{A}select = {{}}", "pools.a.select", "there is no condition in it"),
        (f'{A}select = {{ vendors = "15b3" }}', "pools.a.select", "unknown key 'vendors'"),
        (f"{A}select = {{ vendor = 0x15b3 }}", "pools.a.select.vendor", "'5555' is not allowed, not text"),
        (f'{A}select = {{ vendor = "15b" }}', "pools.a.select.vendor", "'15b' is not allowed"),
        (f'{A}select = {{ pci = "3b" }}', "pools.a.select.pci", "'3b' is not a PCI address"),
        (f'{A}select = {{ pfName = "a#3-1" }}', "pools.a.select.pfName", "3-1 has its ends the wrong way round"),
        (f'{A}select = {{ pfName = "a#x" }}', "pools.a.select.pfName", "'x' are no numbers of virtual functions"),
        (f'{A}select = {{ pfName = "a#" }}', "pools.a.select.pfName", "'' are no numbers of virtual functions"),
        (f'{A}select = {{ pfName = "#1" }}', "pools.a.select.pfName", "'' is not allowed"),
        (f'{A}select = {{ rootDevice = "ens1f0" }}', "pools.a.select.rootDevice", "'ens1f0' is not allowed"),
        (f'{A}select = {{ rootDevice = "pci0000:3a#1" }}', "pools.a.select.rootDevice", "is not allowed"),
        (f"{A}select = {{ pkey = 0x8000 }}", "pools.a.select.pkey", "'32768' is no P_Key"),
        (f"{A}select = {{ pkey = 0x10000 }}", "pools.a.select.pkey", "is no P_Key"),
        (f'{A}select = {{ linkLayer = "ethernet" }}', "pools.a.select.linkLayer", "'ethernet' is not allowed"),
        (f"{A}select = {{ numaNode = [0, 0] }}", "pools.a.select.numaNode[1]", "0 is there twice"),
        (f"{A}select = {{ minSpeedGbps = 2.5 }}", "pools.a.select.minSpeedGbps", "'2.5' is not allowed"),
        (f"{A}select = {{ minSpeedGbps = true }}", "pools.a.select.minSpeedGbps", "'true' is not allowed"),
        (f"{A}shares = 8", "pools.a.shares", "pool a is asked through annotations"),
        (f'{A}gives = "all"', "pools.a.gives", "pool a is asked through annotations"),
        (f'{A}door = "claims"\nshares = 8', "pools.a.shares", "pool a is asked through claims"),
        (f'{A}door = "claims"\nresource = "rdma/a"', "pools.a.resource", "pool a is asked through claims"),
        (f'{A}door = "resource"\nshares = 8', "pools.a", "resource is missing"),
        (f'{A}door = "resource"\nresource = "rdma/a"', "pools.a", "shares is missing"),
        (f'{A}door = "resource"\nresource = "a"\nshares = 8', "pools.a.resource", "'a' is not allowed"),
        (f'{A}door = "resource"\nresource = "kubernetes.io/a"\nshares = 8', "pools.a.resource", "Kubernetes' own"),
        (f'{A}door = "resource"\nresource = "x.kubernetes.io/a"\nshares = 8', "pools.a.resource", "Kubernetes' own"),
        (f'{A}door = "resource"\nresource = "requests.x/a"\nshares = 8', "pools.a.resource", "Kubernetes' own"),
        (
            f'[pools.{"a" * 53}]\nmodes = ["shared"]\ndoor = "resource"\nresource = "rdma/a"\nshares = 8',
            f"pools.{'a' * 53}",
            "longer than 52 characters",
        ),
        (f'{A}door = "resource"\nresource = "rdma/a"\nshares = 0', "pools.a.shares", "'0'"),
        (
            f'{A}door = "resource"\nresource = "rdma/a"\ngives = "device"\nshares = 8',
            "pools.a.shares",
            "as many of the resource as the pool has devices",
        ),
        (f'{A}door = "resource"\ngives = "device"', "pools.a", "resource is missing"),
        (f'{A}door = "resource"\nresource = "rdma/a"\nshares = 8\ngives = "two"', "pools.a.gives", "'two'"),
        (f"{A}requireIsolation = 1", "pools.a.requireIsolation", "'1' is not allowed"),
        (f"{A}requireIsolation = true", "pools.a.requireIsolation", "cannot be hidden"),
        (f'{A}use = "disk"', "pools.a.use", "'disk' is not allowed"),
        (f"{A}prove = 1", "pools.a.prove", "'1' is not allowed"),
        (f"{A}env = {{}}", "pools.a.env", "the table is empty"),
        (f"{A}env = []", "pools.a.env", "a list is no table of variables"),
        (f'{A}env = {{ PATH = "/tmp" }}', "pools.a.env", "'PATH' is no variable of a fabric"),
        (f'{A}env = {{ LD_PRELOAD = "/tmp/a.so" }}', "pools.a.env", "'LD_PRELOAD' is no variable of a fabric"),
        (f'{A}env = {{ RDMA_DEVICES_0 = "a" }}', "pools.a.env", "'RDMA_DEVICES_0' is no variable of a fabric"),
        (f'{A}env = {{ NRI_RDMA_POOL = "a" }}', "pools.a.env", "'NRI_RDMA_POOL' is no variable of a fabric"),
        (f'{A}env = {{ NCCL_ = "a" }}', "pools.a.env", "'NCCL_' is no variable of a fabric"),
        (f'{A}env = {{ "NCCL_A=B" = "a" }}', "pools.a.env", "'NCCL_A=B' is no variable of a fabric"),
        (f'{A}env = {{ NCCL_IB_HCA = "mlx5_0" }}', "pools.a.env.NCCL_IB_HCA", "sets this variable for each container"),
        (f'{A}env = {{ NVSHMEM_HCA_LIST = "a:1" }}', "pools.a.env.NVSHMEM_HCA_LIST", "sets this variable for each"),
        (f"{A}env = {{ NCCL_IB_TC = 106 }}", "pools.a.env.NCCL_IB_TC", "'106' is not allowed, not text"),
        (f'{A}env = {{ NCCL_IB_TC = "a\\nb" }}', "pools.a.env.NCCL_IB_TC", "is not allowed"),
        (f"{A}limits = {{}}", "pools.a.limits", "there is no limit in it"),
        (f"{A}limits = {{ hcaHandles = 0 }}", "pools.a.limits.hcaHandles", "'0' is not allowed"),
        (
            f"{A}limits = {{ hcaHandles = 9 }}\nmaxLimits = {{ hcaHandles = 8 }}",
            "pools.a.limits.hcaHandles",
            "9 is above maxLimits.hcaHandles, 8",
        ),
        (f'{A}[pools.b]\nmodes = ["exclusive"]', "pools.b", "it has the same devices as pools.a"),
        ("rules = {}", "rules", "a mapping is no list of rules"),
        ("rules = []", "rules", "a list is no list of rules"),
        ("[[rules]]\nnamespace = []", "rules[0]", "unknown key 'namespace'"),
        ('[[rules]]\nnamespaces = ["A"]', "rules[0].namespaces[0]", "'A' is not allowed"),
        ("[[rules]]\npodLabels = {}", "rules[0].podLabels", "a mapping is no table of labels"),
        ('[[rules]]\npodLabels = { "a b" = "c" }', "rules[0].podLabels", "'a b' is no label's key"),
        ("[[rules]]\npodLabels = { a = 1 }", "rules[0].podLabels.a", "'1' is not allowed, not text"),
        ('[[rules]]\nname = "a"\n[[rules]]\nname = "a"', "rules[1].name", "a is the name of rules[0]"),
        ('[[rules]]\ninterface = ["ipam"]', "rules[0].interface[0]", "'ipam' is not allowed"),
        ('[[rules]]\nallow = false\nmodes = ["shared"]', "rules[0].modes", "permits nothing"),
        (f'{A}[[rules]]\npools = ["b"]', "rules[0].pools[0]", "there is no pool 'b'"),
        (f'{A}[[rules]]\nmodes = ["exclusive"]', "rules[0].modes[0]", "none of its pools serves mode exclusive"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(text: str, where: str, what: str) -> None:
    error = refusal(text)
    assert error.where == where
    assert what in error.what


def test_an_unknown_key_names_the_nearest_one() -> None:
    error = refusal(f"{A}select = {{ min_speed_gbps = 1 }}")
    assert error.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert error.hint.startswith("write minSpeedGbps; the keys are device, ")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    [key.name for keys in (SELECTOR_KEYS, POOL_KEYS, RULE_KEYS) for key in keys] + ["hcaHandles", "hcaObjects", "team"]
)
_TABLES = st.dictionaries(_KEYS, _VALUES | st.dictionaries(_KEYS, _VALUES, max_size=3), max_size=4)


@given(st.dictionaries(st.sampled_from(["a", "b", "1", ""]), _TABLES | _VALUES), st.lists(_TABLES | _VALUES) | _VALUES)
def test_whatever_is_written_is_read_or_refused(pool_tables: object, rule_tables: object) -> None:
    try:
        check_rules(read_pools(node_of(pool_tables)), read_rules(node_of(rule_tables)))
    except RequestError as error:
        assert error.where.startswith(("pools", "rules"))
        assert "\n" not in str(error)


def test_all_that_is_wrong_about_what_others_gave_is_told_together() -> None:
    with pytest.raises(RequestError) as caught:
        read_adoption(node_of({"mode": "sometimes", "memlock": "much"}))
    assert [it.where for it in (caught.value, *caught.value.others)] == ["adopt.mode", "adopt.memlock"]
