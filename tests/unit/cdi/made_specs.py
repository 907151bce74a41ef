"""Specs of any shape, made by hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import (
    Device,
    DeviceNode,
    Edits,
    Hook,
    HookName,
    IntelRdt,
    Kind,
    Mount,
    NetDevice,
    NodeType,
    Spec,
    Version,
)

HEAD = "cdiVersion: 1.1.0\nkind: ve/cl\n"


def slowly(examples: int) -> settings:
    """A machine under load is no failure."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def spec_with(edits: str, head: str = HEAD) -> Edits:
    """The edits of a device, written in YAML's braces."""
    return parse(f"{head}devices: [{{name: a, containerEdits: {edits}}}]".encode(), "FILE").devices[0].edits


def node_with(fields: str) -> DeviceNode:
    return spec_with(f"{{deviceNodes: [{{path: /dev/a, {fields}}}]}}").device_nodes[0]


_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_FILLED = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
_VARIABLES = st.lists(st.builds("{}={}".format, _FILLED.filter(lambda name: "=" not in name), _TEXT), max_size=3).map(
    tuple
)
_NAME = st.from_regex(r"[A-Za-z][-A-Za-z0-9_.]{0,8}[A-Za-z0-9]", fullmatch=True)
_DEVICE_NAME = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.:]{0,8}[A-Za-z0-9])?", fullmatch=True)
_UINT32 = st.integers(0, 2**32 - 1)
_NODES = st.builds(
    DeviceNode,
    path=_FILLED,
    host_path=_TEXT,
    type=st.none() | st.sampled_from(NodeType),
    major=st.none() | st.integers(0, 4095),
    minor=st.none() | st.integers(0, 2**20 - 1),
    file_mode=st.none() | _UINT32,
    permissions=st.sampled_from(["", "r", "rwm", "mw", "none"]),
    uid=st.none() | _UINT32,
    gid=st.none() | _UINT32,
)
_NET_DEVICES = st.lists(
    st.builds(NetDevice, host_interface_name=_FILLED, name=_FILLED),
    max_size=3,
    unique_by=(lambda it: it.host_interface_name, lambda it: it.name),
).map(tuple)
_HOOKS = st.builds(
    Hook,
    hook_name=st.sampled_from(HookName),
    path=_FILLED,
    args=st.lists(_TEXT, max_size=2).map(tuple),
    env=_VARIABLES,
    timeout=st.none() | st.integers(-(2**63), 2**63 - 1),
)
_MOUNTS = st.builds(
    Mount, host_path=_FILLED, container_path=_FILLED, options=st.lists(_TEXT, max_size=2).map(tuple), type=_TEXT
)
_RDT = st.builds(
    IntelRdt,
    clos_id=st.just("/") | _TEXT.filter(lambda text: text not in {".", ".."} and not {"/", "\n"} & set(text)),
    l3_cache_schema=_TEXT,
    mem_bw_schema=_TEXT,
    schemata=st.none() | st.lists(_TEXT, max_size=2).map(tuple),
    enable_monitoring=st.booleans(),
)
_EDITS = st.builds(
    Edits,
    env=_VARIABLES,
    device_nodes=st.lists(_NODES, max_size=2).map(tuple),
    net_devices=_NET_DEVICES,
    hooks=st.lists(_HOOKS, max_size=2).map(tuple),
    mounts=st.lists(_MOUNTS, max_size=2).map(tuple),
    intel_rdt=st.none() | _RDT,
    additional_gids=st.lists(_UINT32, max_size=2).map(tuple),
)
_ANNOTATIONS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]).filter(str.isprintable), min_size=1, max_size=317),
    _TEXT,
    max_size=2,
).map(lambda pairs: tuple(pairs.items()))
SPECS = st.builds(
    Spec,
    version=st.just(Version.V1_1_0),
    kind=st.builds(Kind, vendor=_NAME, device_class=_NAME),
    devices=st.lists(
        st.builds(Device, name=_DEVICE_NAME, edits=_EDITS.filter(lambda it: not it.is_empty), annotations=_ANNOTATIONS),
        min_size=1,
        max_size=3,
        unique_by=lambda device: device.name,
    ).map(tuple),
    edits=_EDITS,
    annotations=_ANNOTATIONS,
)
