"""The words of refusals about pools, rules, the configuration and the host's use, as a person reads them:
golden/refusals.txt."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from nri_rdma.commands.explain.explanation import Facts, explain
from nri_rdma.config.settings import Document, load
from nri_rdma.decide.inventory import in_use_reasons, kernel_use_reasons, open_reasons, socket_reasons
from nri_rdma.decide.policy import default_policy, policy_of
from nri_rdma.errors import NriRdmaError, SettingError
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import ObjectKind, RdmaObject
from nri_rdma.model.usage import HostSocket, HostUse, Lifelines
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.unit.golden import assert_as_before
from tests.unit.model.hardware import eight, nic, node

KUBELET_SHOWS = 200
"""Characters of an error that the kubelet keeps, at the least."""

CONFIG = """\
[pools.default]
select = { device = ["mlx5_0", "mlx5_1"] }
modes = ["shared"]
maxLimits = { hcaHandles = 8 }

[pools.rails]
select = { numaNode = 1 }
modes = ["exclusive"]
requireIsolation = true

[pools.storage]
select = { device = ["mlx5_1", "mlx5_2"] }
modes = ["exclusive", "shared"]

[pools.empty]
select = { vendor = "14e4" }
modes = ["shared"]

[[rules]]
name = "no sandboxes"
runtimeHandlers = ["kata*"]
allow = false

[[rules]]
name = "storage"
pools = ["storage"]
modes = ["shared"]
interface = []
maxLimits = { hcaObjects = 100 }

[[rules]]
name = "training"
namespaces = ["train"]
interface = ["name"]
"""

PODS: tuple[tuple[str, str, str, str], ...] = (
    ("a pool that is not there", "train", "", "gold"),
    ("no rule for the pod", "web", "", "rails"),
    ("a rule says no", "train", "kata-qemu", "rails"),
    ("a mode that the pool does not serve", "train", "", "{mode: exclusive}"),
    ("a mode that the rule does not permit", "train", "", "{pool: storage, mode: exclusive}"),
    ("devices without permission", "train", "", "{devices: [umad]}"),
    ("an interface setting without permission", "train", "", "{pool: rails, interface: {mtu: 9000}}"),
    ("limits above the pool's", "train", "", "{limits: {hcaHandles: 9}}"),
    ("limits above the rule's", "train", "", "{pool: storage, limits: {hcaObjects: 101}}"),
    ("isolation that the kernel does not give", "train", "", "rails"),
    ("a device of another pool", "train", "", "{match: {device: mlx5_5}}"),
    ("a device of no pool", "train", "", "{match: {device: mlx5_3}}"),
    ("a device that two pools select", "train", "", "{match: {device: mlx5_1}}"),
    ("a pool without devices", "train", "", "empty"),
    ("more than the pool has", "train", "", "{count: 2}"),
)

FILES: tuple[tuple[str, str], ...] = (
    ("an unknown setting", 'log_levle = "info"'),
    ("a value that a setting cannot have", 'log_level = "loud"'),
    ("an address of the node that is none", 'node_ip = "node-1"'),
    ("an API server by name", 'api_server = "api.example.com:6443"'),
    ("pools and allow_default_pool", 'allow_default_pool = true\npools.a.modes = ["shared"]'),
    ("an unknown key of a pool", '[pools.a]\nselct = { vendor = "15b3" }'),
    ("an unknown condition", '[pools.a]\nmodes = ["shared"]\nselect = { vendors = "15b3" }'),
    ("a vendor without quotes", '[pools.a]\nmodes = ["shared"]\nselect = { vendor = 0x15b3 }'),
    ("no mode", "[pools.a]"),
    ("ranges that are none", '[pools.a]\nmodes = ["shared"]\nselect.pfName = "ens1f0#3-1"'),
    ("two pools of the same devices", '[pools.a]\nmodes = ["shared"]\n[pools.b]\nmodes = ["shared"]'),
    ("isolation of what is shared", '[pools.a]\nmodes = ["shared"]\nrequireIsolation = true'),
    ("a rule about no pool", '[pools.a]\nmodes = ["shared"]\n[[rules]]\npools = ["b"]'),
    ("a rule about a mode that nobody serves", '[pools.a]\nmodes = ["shared"]\n[[rules]]\nmodes = ["exclusive"]'),
    ("a rule that refuses and permits", "[[rules]]\nallow = false\ninterface = []"),
)


RAIL = LinkState(
    ifindex=10,
    name="eth0",
    kind="",
    parent="",
    permanent_mac="",
    mac="02:00:00:00:00:00",
    mtu=1500,
    txqlen=1000,
    alias="",
    alt_names=(),
    up=True,
)
OWN = ip_address("10.0.0.5")
USES: tuple[tuple[str, HostUse], ...] = (
    ("part of a bond", HostUse(links=(replace(RAIL, master=3), replace(RAIL, ifindex=3, name="bond0")))),
    ("a bond itself", HostUse(links=(RAIL, replace(RAIL, ifindex=3, name="eth7", master=10)))),
    ("a child of it", HostUse(links=(RAIL, replace(RAIL, ifindex=3, name="eth0.5", lower=10)))),
    ("an XDP program", HostUse(links=(replace(RAIL, xdp=True),))),
    ("a default route", HostUse(links=(RAIL,), default_route_links=frozenset({10}))),
    (
        "the route to the API server",
        HostUse(links=(RAIL,), lifelines=Lifelines(api_server=OWN), api_server_links=frozenset({10})),
    ),
    (
        "the node's address",
        HostUse(links=(RAIL,), lifelines=Lifelines(node_ips=(OWN,)), addresses={10: frozenset({OWN})}),
    ),
    (
        "sockets on its address",
        HostUse(
            links=(RAIL,),
            addresses={10: frozenset({OWN})},
            sockets=tuple(HostSocket(protocol="tcp", address=OWN, port=port) for port in (22, 80, 443, 4420)),
        ),
    ),
    (
        "a socket that is bound to it",
        HostUse(links=(RAIL,), sockets=(HostSocket(protocol="udp", address=None, port=319, ifindex=10),)),
    ),
)
OBJECTS: tuple[tuple[str, RdmaObject], ...] = (
    ("a part of the kernel", RdmaObject(kind=ObjectKind.QP, kernel_user="nvme_rdma", pid=None)),
    (
        "a process",
        RdmaObject(kind=ObjectKind.CTX, kernel_user="", pid=4711, process="opensm"),
    ),
)


def test_refusals_read_as_they_did() -> None:
    assert_as_before("refusals.txt", (*_of_pods(), *_of_files(), *_of_uses()))


def test_code_and_cause_of_a_refusal_come_before_the_kubelet_cuts() -> None:
    for title, error in _refusals():
        assert len(f"nri-rdma: {error.code}: {error.what}") < KUBELET_SHOWS, title
        assert error.hint, title


def _of_pods() -> list[tuple[str, str]]:
    return [(title, str(error)) for title, error in _refusals()]


def _refusals() -> list[tuple[str, NriRdmaError]]:
    settings = load({}, {}, Document(name="/etc/nri-rdma/config.toml", text=CONFIG)).settings
    policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
    found = []
    for title, namespace, handler, text in PODS:
        pod = PodManifest(
            kind="Pod",
            namespace=namespace,
            name="train-0",
            annotations={"rdma.noderesource.dev/pod": text},
            containers=(ContainerManifest(name="main"),),
            runtime_class=handler,
        )
        facts = Facts(node=_node(), policy=policy, taken={}, annotation_prefix="rdma.noderesource.dev")
        refusal = explain(pod, facts).refusal
        assert refusal is not None, title
        found.append((title, refusal))
    return found


def _node() -> Node:
    return node(eight().devices, eight().gpus, rdma_cgroup=True)


def _of_uses() -> list[tuple[str, str]]:
    """What a pod is told that asks for such a device."""
    links = [
        (title, (*in_use_reasons(use.links[0], use), *socket_reasons(use.links[0], use)), ()) for title, use in USES
    ]
    objects = [(title, kernel_use_reasons([item], RdmaNetns.SHARED), open_reasons([item])) for title, item in OBJECTS]
    return [(f"in use: {title}", str(_refusal_of(in_use, by_some))) for title, in_use, by_some in (*links, *objects)]


def _refusal_of(in_use: tuple[str, ...], used_by_some: tuple[str, ...]) -> NriRdmaError | None:
    device = replace(nic(0, in_use=in_use), used_by_some=used_by_some)
    pod = PodManifest(
        kind="Pod",
        namespace="train",
        name="train-0",
        annotations={"rdma.noderesource.dev/pod": "{match: {device: mlx5_0}}"},
        containers=(ContainerManifest(name="main"),),
    )
    policy = default_policy(allow_exclusive=True)
    facts = Facts(node=node((device,)), policy=policy, taken={}, annotation_prefix="rdma.noderesource.dev")
    return explain(pod, facts).refusal


def _of_files() -> list[tuple[str, str]]:
    return [(title, _refusal_of_file(text)) for title, text in FILES]


def _refusal_of_file(text: str) -> str:
    try:
        load({}, {}, Document(name="/etc/nri-rdma/config.toml", text=text))
    except SettingError as error:
        return str(error)
    raise AssertionError(f"{text!r} is taken")
