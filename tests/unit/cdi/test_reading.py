"""CDI specs are read strictly: what is a spec becomes one, anything else problems."""

from __future__ import annotations

import json
from typing import Any  # Any: JSON values

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from nri_rdma.errors import CdiError
from tests.unit.cdi import refusals
from tests.unit.cdi.made_specs import node_with, slowly
from tests.unit.golden import assert_in_file
from tests.unit.rigs.bad_input import assert_complete, in_time

HEAD = "cdiVersion: 1.1.0\nkind: ve/cl\n"


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


def test_a_null_is_a_field_that_is_not_there() -> None:
    assert node_with("type: ~, major: null, uid: , hostPath: NULL") == DeviceNode(path="/dev/a")
    assert node_with("type: ''") == DeviceNode(path="/dev/a")  # and so is an empty type


def test_a_text_may_look_like_something_else() -> None:
    spec = parse(
        f"{HEAD}devices: [{{name: 10, annotations: {{1: yes, a: }}, containerEdits: {{env: [A=1]}}}}]".encode(), "F"
    )
    assert (spec.devices[0].name, spec.devices[0].annotations) == ("10", (("1", "yes"), ("a", "")))


def told(text: str) -> list[tuple[str, int]]:
    """The path and the line of each problem."""
    return [(problem.path, problem.line) for problem in inspect(text.encode(), "FILE").problems]


def test_a_required_field_has_the_line_of_its_null_or_of_what_lacks_it() -> None:
    assert told("\ncdiVersion: 1.1.0\nkind: ~\n") == [("devices", 2), ("kind", 3)]


def test_one_look_finds_every_entry_and_field_that_is_wrong() -> None:
    text = f"""{HEAD}annotations: {{a.b/c: [1]}}
devices:
- name: a
  containerEdits:
    additionalGids: [1, x, 3,
     -9, ~, 2]
- name: b/c
  containerEdits: {{env: [B]}}
  '': 1
- name: a
  containerEdits:
    []
"""
    assert told(text) == [
        ("annotations['a.b/c']", 3),
        ("devices[0].containerEdits.additionalGids[1]", 7),
        ("devices[0].containerEdits.additionalGids[3]", 8),
        ("devices[0].containerEdits.additionalGids[4]", 8),
        ("devices[1].name", 9),
        ("devices[1].containerEdits.env[0]", 10),
        ("devices[1]['']", 11),
        ("devices[2].name", 12),  # the first device has the name, although its edits cannot be read
        ("devices[2].containerEdits", 14),
    ]


def test_what_is_told_of_each_mistake_is_in_the_golden_file() -> None:
    assert_in_file(refusals.GOLDEN, refusals.told())


def test_parse_raises_the_first_problem_and_inspect_tells_all() -> None:
    text = b"cdiVersion: 2\nkind: x\ndevices: [{name: a, containerEdits: {env: [B]}}]\n"
    assert [problem.line for problem in inspect(text, "FILE").problems] == [1, 2, 3]
    with pytest.raises(CdiError) as caught:
        parse(text, "FILE")
    assert caught.value.path == "cdiVersion"


def test_whether_the_version_suffices_is_not_asked_of_a_spec_with_mistakes() -> None:
    """What cannot be read is replaced by something else, about which nothing is to be told."""
    text = "cdiVersion: 0.3.0\nkind: ve.com/nic\nannotations: {a: b}\ndevices: [{name: a, containerEdits: {env: [%s]}}]"
    (version,) = inspect((text % "A=B").encode(), "FILE").problems
    assert version.line == 3
    (mistake,) = inspect((text % "B").encode(), "FILE").problems
    assert mistake.line == 4


_KEYS = st.sampled_from(
    [
        *("cdiVersion", "kind", "annotations", "devices", "containerEdits", "name", "env", "deviceNodes", "netDevices"),
        *("hooks", "mounts", "intelRdt", "additionalGids", "path", "type", "major", "hookName", "hostPath", "schemata"),
    ]
)
_MARKS = "[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\0\x85\ufeff"
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ve/cl", "1.0.0", "a=b"])
)
_TREES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5))


@slowly(100)
@given(st.dictionaries(_KEYS, _TREES))
def test_no_document_raises_anything_but_a_cdi_error(document: dict[str, Any]) -> None:
    inspected = inspect(json.dumps(document).encode(), "FILE")
    assert (inspected.spec is None) == bool(inspected.problems)


@in_time
@given(st.binary(max_size=200) | st.text(_MARKS, max_size=80).map(str.encode) | st.lists(st.sampled_from(
    ["cdiVersion: 0.3.0\n", "kind: ve/cl\n", "devices:\n", "- name: a\n", "  containerEdits:\n", "    env: [A=1]\n",
     "{", "}", "[", '"a": ', "<<: ", "&a ", "*a ", "    deviceNodes: [{path: /a}]\n", "---\n", "\t",
     "\0", "null\n", "? ", "!x "]
), max_size=14).map(lambda words: "".join(words).encode()))  # fmt: skip
def test_any_cdi_spec_is_a_spec_or_complete_refusals(data: bytes) -> None:
    inspected = inspect(data, "FILE")
    assert (inspected.spec is None) == bool(inspected.problems)
    for error in inspected.problems:
        assert_complete(error)
