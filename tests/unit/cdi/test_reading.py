"""CDI specs are read strictly: what is a spec becomes one, anything else problems."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any  # Any: JSON values

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nri_rdma.cdi.document import MAX_BYTES, MAX_NODES
from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.problems import MAX_PROBLEMS
from nri_rdma.cdi.reading import inspect, parse
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
from nri_rdma.cdi.version import minimum_version
from nri_rdma.errors import CdiError, ErrorCode
from tests.unit.cdi import refusals
from tests.unit.complete import assert_complete, in_time

HEAD = "cdiVersion: 1.1.0\nkind: v/c\n"


def slowly(examples: int) -> settings:
    """A machine under load is no failure."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def spec_with(edits: str, head: str = HEAD) -> Edits:
    """The edits of a device, written in YAML's braces."""
    return parse(f"{head}devices: [{{name: a, containerEdits: {edits}}}]".encode(), "FILE").devices[0].edits


def node_with(fields: str) -> DeviceNode:
    return spec_with(f"{{deviceNodes: [{{path: /dev/a, {fields}}}]}}").device_nodes[0]


def test_every_field_of_the_schema_is_read() -> None:
    text = """
cdiVersion: v1.1.0
kind: vendor.example/class
annotations: {a.b/c: d}
devices:
- name: "0:a"
  annotations: {e: ""}
  containerEdits:
    env: [A=1, B=]
    deviceNodes:
    - {path: /dev/a, hostPath: /dev/b, type: c, major: 231, minor: 0, fileMode: 0666, permissions: rw, uid: 1, gid: 0}
    netDevices: [{hostInterfaceName: eth1, name: rdma0}]
    hooks: [{hookName: createRuntime, path: /bin/h, args: [h], env: [C=2], timeout: 3}]
    mounts: [{hostPath: /a, containerPath: /b, options: [ro], type: bind}]
    intelRdt: {closID: /, l3CacheSchema: x, memBwSchema: y, schemata: [z], enableMonitoring: true}
    additionalGids: [4]
containerEdits: {env: [D=3]}
"""
    assert parse(text.encode(), "FILE") == Spec(
        version=Version.V1_1_0,
        kind=Kind(vendor="vendor.example", device_class="class"),
        annotations=(("a.b/c", "d"),),
        edits=Edits(env=("D=3",)),
        devices=(
            Device(
                name="0:a",
                annotations=(("e", ""),),
                edits=Edits(
                    env=("A=1", "B="),
                    device_nodes=(
                        DeviceNode(
                            path="/dev/a",
                            host_path="/dev/b",
                            type=NodeType.CHARACTER,
                            major=231,
                            minor=0,
                            file_mode=0o666,
                            permissions="rw",
                            uid=1,
                            gid=0,
                        ),
                    ),
                    net_devices=(NetDevice(host_interface_name="eth1", name="rdma0"),),
                    hooks=(
                        Hook(hook_name=HookName.CREATE_RUNTIME, path="/bin/h", args=("h",), env=("C=2",), timeout=3),
                    ),
                    mounts=(Mount(host_path="/a", container_path="/b", options=("ro",), type="bind"),),
                    intel_rdt=IntelRdt(
                        clos_id="/", l3_cache_schema="x", mem_bw_schema="y", schemata=("z",), enable_monitoring=True
                    ),
                    additional_gids=(4,),
                ),
            ),
        ),
    )


def test_what_is_told_of_each_mistake_is_in_the_golden_file() -> None:
    assert refusals.told() == refusals.GOLDEN.read_text()


def test_every_mistake_of_the_golden_file_is_refused() -> None:
    for name, text in refusals.CASES.items():
        inspected = inspect(text if isinstance(text, bytes) else text.encode(), "FILE")
        assert inspected.spec is None, name
        assert inspected.problems, name


def test_a_problem_carries_code_file_line_and_path() -> None:
    text = f"{HEAD}devices:\n- name: a\n  containerEdits:\n    deviceNodes:\n    - path: /a\n      permissions: rx\n"
    with pytest.raises(CdiError) as caught:
        parse(text.encode(), "/etc/cdi/a.yaml")
    error = caught.value
    assert (error.code, error.file, error.line) == (ErrorCode.CDI_VALUE, "/etc/cdi/a.yaml", 8)
    assert error.path == "devices[0].containerEdits.deviceNodes[0].permissions"
    assert error.where == f"/etc/cdi/a.yaml line 8 {error.path}"


def test_parse_raises_the_first_problem_and_inspect_tells_all() -> None:
    text = b"cdiVersion: 2\nkind: x\ndevices: [{name: a, containerEdits: {env: [B]}}]\n"
    assert [problem.line for problem in inspect(text, "FILE").problems] == [1, 2, 3]
    with pytest.raises(CdiError) as caught:
        parse(text, "FILE")
    assert caught.value.path == "cdiVersion"


def test_problems_beyond_a_hundred_are_counted() -> None:
    text = f"{HEAD}devices: [{{name: a, containerEdits: {{env: [{'B,' * 250}]}}}}]"
    problems = inspect(text.encode(), "FILE").problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].what == "there are 150 more problems"


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("438", 438),
        ("0666", 0o666),
        ("0o666", 0o666),
        ("0x1B6", 438),
        ("0b11", 3),
        ("4_3_8", 438),
        ("+7", 7),
        ("-0", 0),
        ("438.0", 438),
        ("4.38e2", 438),
        ("1e2", 100),
    ],
)
def test_a_number_is_what_runtimes_take_it_for(written: str, number: int) -> None:
    assert node_with(f"fileMode: {written}").file_mode == number


@pytest.mark.parametrize(
    "written", ["08", "1.5", "'5'", "!!str 5", "1:30", "_1", "1e400", ".nan", "0x", "2001-01-01", "9" * 5000]
)
def test_other_words_are_no_numbers(written: str) -> None:
    with pytest.raises(CdiError) as caught:
        node_with(f"fileMode: {written}")
    assert caught.value.path == "devices[0].containerEdits.deviceNodes[0].fileMode"


@pytest.mark.parametrize(
    ("written", "truth"), [("true", True), ("False", False), ("yes", True), ("'on'", True), ("N", False)]
)
def test_a_truth_value_is_what_runtimes_take_it_for(written: str, truth: bool) -> None:
    rdt = spec_with(f"{{intelRdt: {{enableMonitoring: {written}}}}}").intel_rdt
    assert rdt is not None
    assert rdt.enable_monitoring is truth


def test_a_null_is_a_field_that_is_not_there() -> None:
    assert node_with("type: ~, major: null, uid: , hostPath: NULL") == DeviceNode(path="/dev/a")


def test_a_text_may_look_like_something_else() -> None:
    edits = parse(
        f"{HEAD}devices: [{{name: 10, annotations: {{1: yes}}, containerEdits: {{env: [A=1]}}}}]".encode(), "F"
    )
    assert (edits.devices[0].name, edits.devices[0].annotations) == ("10", (("1", "yes"),))


def test_aliases_and_merge_keys_are_read_as_runtimes_do() -> None:
    text = f"""{HEAD}containerEdits: &common {{env: [A=1], mounts: []}}
devices:
- {{name: a, containerEdits: *common}}
- name: b
  containerEdits:
    <<: [*common, {{additionalGids: [1], env: [C=3]}}]
    mounts: [{{hostPath: /a, containerPath: /b}}]
"""
    a, b = parse(text.encode(), "FILE").devices
    assert a.edits == Edits(env=("A=1",))
    assert b.edits == Edits(env=("A=1",), additional_gids=(1,), mounts=(Mount(host_path="/a", container_path="/b"),))


def test_a_leading_byte_order_mark_and_a_directive_are_no_content() -> None:
    text = f"\ufeff%YAML 1.1\n---\n{HEAD}devices: [{{name: a, containerEdits: {{env: [A=1]}}}}]\n..."
    assert parse(text.encode(), "FILE").version is Version.V1_1_0


@pytest.mark.parametrize(
    "data",
    [
        b"[" * MAX_BYTES,
        b"- " * (MAX_BYTES // 2),
        b"? " * (MAX_BYTES // 2),
        b"{a: " * (MAX_BYTES // 4),
        b"&a " * (MAX_BYTES // 3),
        b"a: &a [x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 50)) for c in range(98, 122)),
        b"m: &m {a: 1}\nn: {<<: [" + b"*m," * 300_000 + b"]}",
        (HEAD + "devices: [" + "a," * (MAX_BYTES // 3) + "]").encode(),
        (HEAD + "annotations: {" + "a: 1," * (MAX_NODES // 2 - 10) + "}").encode(),
        (HEAD + "devices: '" + "x" * (MAX_BYTES - 100) + "'").encode(),
        b"#" * MAX_BYTES,
        b"\0" * MAX_BYTES,
        b"\xff" * MAX_BYTES,
        b"9" * MAX_BYTES,
        b"a" * (MAX_BYTES + 1),
    ],
)
def test_a_bomb_is_over_soon(data: bytes) -> None:
    start = time.process_time()
    assert inspect(data, "FILE").spec is None
    assert time.process_time() - start < 1.5


def test_the_largest_allowed_is_read_soon() -> None:
    """Two thousand devices; the bound on values is what takes longest to reach."""
    made = [{"name": f"a{number}", "containerEdits": {"deviceNodes": [{"path": "/a"}]}} for number in range(2000)]
    data = json.dumps({"cdiVersion": "0.3.0", "kind": "v/c", "devices": made}).encode()
    start = time.process_time()
    assert len(parse(data, "FILE").devices) == 2000
    assert time.process_time() - start < 1.5


@slowly(100)
@given(st.binary(max_size=200) | st.text("[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\0\x85\ufeff", max_size=80).map(str.encode))
def test_no_bytes_raise_anything_but_a_cdi_error(data: bytes) -> None:
    inspected = inspect(data, "FILE")
    assert (inspected.spec is None) == bool(inspected.problems)


_KEYS = st.sampled_from(
    [
        *("cdiVersion", "kind", "annotations", "devices", "containerEdits", "name", "env", "deviceNodes", "netDevices"),
        *("hooks", "mounts", "intelRdt", "additionalGids", "path", "type", "major", "hookName", "hostPath", "schemata"),
    ]
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["v/c", "1.0.0", "a=b"])
)
_TREES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5))


@slowly(100)
@given(st.dictionaries(_KEYS, _TREES))
def test_no_document_raises_anything_but_a_cdi_error(document: dict[str, Any]) -> None:
    inspected = inspect(json.dumps(document).encode(), "FILE")
    assert (inspected.spec is None) == bool(inspected.problems)


# Specs of any shape

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_FILLED = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
_VARIABLES = st.lists(st.builds("{}={}".format, _FILLED.filter(lambda name: "=" not in name), _TEXT), max_size=3).map(
    tuple
)
_NAME = st.from_regex(r"[A-Za-z]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?", fullmatch=True)
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
_SPECS = st.builds(
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


@slowly(50)
@given(_SPECS)
def test_a_spec_is_the_same_after_writing_and_reading(spec: Spec) -> None:
    assert parse(encode(spec), "FILE") == spec
    assert encode(parse(encode(spec), "FILE")) == encode(spec)


@slowly(25)
@given(_SPECS)
def test_what_is_written_is_json(spec: Spec) -> None:
    document = json.loads(encode(spec))
    assert [device["name"] for device in document["devices"]] == [device.name for device in spec.devices]


@slowly(25)
@given(_SPECS)
def test_a_spec_is_read_in_its_minimum_version_and_in_none_before(spec: Spec) -> None:
    minimum = list(Version).index(minimum_version(spec))
    for number, version in enumerate(Version):
        codes = {problem.code for problem in inspect(encode(replace(spec, version=version)), "FILE").problems}
        assert codes == ({ErrorCode.CDI_VERSION} if number < minimum else set())


# CDI specs


@in_time
@given(st.binary(max_size=200) | st.lists(st.sampled_from(
    ["cdiVersion: 0.3.0\n", "kind: v/c\n", "devices:\n", "- name: a\n", "  containerEdits:\n", "    env: [A=1]\n",
     "{", "}", "[", '"a": ', "<<: ", "&a ", "*a ", "    deviceNodes: [{path: /a}]\n", "---\n", "\t",
     "\0", "null\n", "? ", "!x "]
), max_size=14).map(lambda words: "".join(words).encode()))  # fmt: skip
def test_any_cdi_spec_is_a_spec_or_complete_refusals(data: bytes) -> None:
    for error in inspect(data, "FILE").problems:
        assert_complete(error)
