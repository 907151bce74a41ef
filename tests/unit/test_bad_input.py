"""Bad input of every parser: the code and the place of each refusal, and its words in golden/.

Of configurations: config/test_problems.py. Of CDI specs: cdi/refusals.py. Of pools and policies: test_refusal_texts.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nri_rdma.cdi.reading import inspect
from nri_rdma.commands.cli.document import read_document
from nri_rdma.commands.cli.status_check import look_through
from nri_rdma.commands.cli.tracefile import read_trace
from nri_rdma.commands.validate.files import check
from nri_rdma.doors.control.client import ask_status, ask_trace
from nri_rdma.doors.control.document import SERVICE, node_from, policy_from
from nri_rdma.errors import ErrorCode, NotReadyError, RequestError, SettingError
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from nri_rdma.text.manifest import read_pods
from nri_rdma.ttrpc import Server
from tests.rig.node import load as load_node
from tests.rig.systree import build_tree
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.complete import assert_complete, in_time
from tests.unit.golden import assert_as_before

POD = f"{PREFIX}/pod"

# Annotations

SIZE, SYNTAX, ALIAS = ErrorCode.ANNOTATION_SIZE, ErrorCode.ANNOTATION_SYNTAX, ErrorCode.ANNOTATION_ALIAS
TWICE, UNKNOWN, VALUE = ErrorCode.ANNOTATION_DUPLICATE_KEY, ErrorCode.ANNOTATION_UNKNOWN_KEY, ErrorCode.ANNOTATION_VALUE

ANNOTATIONS: tuple[tuple[str, Mapping[str, str], ErrorCode, str], ...] = (
    ("a key of ours that is none", {f"{PREFIX}/pods": "1"}, UNKNOWN, f"{PREFIX}/pods"),
    ("a container's name that is none", {f"{PREFIX}/container.A": "1"}, VALUE, f"{PREFIX}/container.A"),
    ("two lists of the pod", {PREFIX: "1", POD: "1"}, VALUE, PREFIX),
    ("more annotations than allowed", {f"{PREFIX}/container.c{n}": "1" for n in range(65)}, SIZE, PREFIX),
    ("all annotations too large", {f"{PREFIX}/container.c{n}": " " * 60_000 for n in range(5)}, SIZE, PREFIX),
    ("more requests than allowed", {POD: f"[{'{},' * 60}]", f"{PREFIX}/container.a": f"[{'{},' * 5}]"}, SIZE, PREFIX),
    ("a text too large", {POD: " " * 65_537}, SIZE, POD),
    ("no YAML", {POD: "- a\n- b: c: d"}, SYNTAX, f"{POD} line 2 column 7"),
    ("a character that YAML has not", {POD: "a\0"}, SYNTAX, POD),
    ("a directive", {POD: "%YAML 1.2\n--- 1"}, SYNTAX, f"{POD} line 1 column 1"),
    ("a second document", {POD: "1\n--- 2"}, SYNTAX, f"{POD} line 2 column 1"),
    ("a key of several words", {POD: "? [a]\n: b"}, SYNTAX, f"{POD} line 1 column 3"),
    ("an anchor", {POD: "count: &a 1"}, ALIAS, f"{POD} line 1 column 8"),
    ("an alias", {POD: "count: *a"}, ALIAS, f"{POD} line 1 column 8"),
    ("a tag", {POD: "count: !!int 1"}, ALIAS, f"{POD} line 1 column 8"),
    ("a merge key", {POD: "<<: {count: 1}"}, ALIAS, f"{POD} line 1 column 1"),
    ("a key twice", {POD: "count: 1\ncount: 2"}, TWICE, f"{POD} line 2 column 1"),
    ("a value too long", {POD: f"name: {'a' * 257}"}, SIZE, f"{POD} line 1 column 7"),
    ("nested too deep", {POD: "[" * 9}, SIZE, f"{POD} line 1 column 9"),
    ("a list too long", {POD: f"[{'a,' * 65}]"}, SIZE, f"{POD} line 1 column 130"),
    ("neither count nor pool", {POD: "1.5"}, VALUE, POD),
    ("no count", {POD: "0"}, VALUE, POD),
    ("a list in a list", {POD: "[[]]"}, VALUE, f"{POD}[0]"),
    ("an unknown key", {POD: "cuont: 1"}, UNKNOWN, POD),
    ("a key of strange characters", {POD: '"\\e[31m": 1'}, UNKNOWN, POD),
    ("a name", {POD: "name: Rails"}, VALUE, f"{POD}.name"),
    ("a name twice", {POD: "[{name: a}, {name: a}]"}, ErrorCode.NAME_CONFLICT, f"{POD}[1].name"),
    ("a number for a name", {POD: "name: 1"}, VALUE, f"{POD}.name"),
    ("nothing for a name", {POD: "name:"}, VALUE, f"{POD}.name"),
    ("a pool", {POD: "pool: 7up"}, VALUE, f"{POD}.pool"),
    ("a condition", {POD: "match: {pci: '600'}"}, VALUE, f"{POD}.match.pci"),
    ("a vendor", {POD: "match: {vendor: mellanox}"}, VALUE, f"{POD}.match.vendor"),
    ("a link layer", {POD: "match: {linkLayer: ib}"}, VALUE, f"{POD}.match.linkLayer"),
    ("a NUMA node", {POD: "match: {numaNode: -1}"}, VALUE, f"{POD}.match.numaNode"),
    ("a count", {POD: "count: many"}, VALUE, f"{POD}.count"),
    ("containers", {POD: "containers: a"}, VALUE, f"{POD}.containers"),
    ("no containers", {POD: "containers: []"}, VALUE, f"{POD}.containers"),
    ("containers of a container", {f"{PREFIX}/container.a": "containers: [a]"}, VALUE,
     f"{PREFIX}/container.a.containers"),
    ("an alignment", {POD: "align: {strict: true}"}, VALUE, f"{POD}.align"),
    ("a strict alignment to nothing", {POD: "align: {to: none, strict: true}"}, VALUE, f"{POD}.align"),
    ("a truth value", {POD: "align: {to: gpu, strict: yes}"}, VALUE, f"{POD}.align.strict"),
    ("a GPU", {POD: "gpus: [0]"}, VALUE, f"{POD}.gpus[0]"),
    ("a mode", {POD: "mode: alone"}, VALUE, f"{POD}.mode"),
    ("an interface's name", {POD: "interface: {name: a/b}"}, VALUE, f"{POD}.interface.name"),
    ("a reserved name", {POD: "interface: {name: lo}"}, VALUE, f"{POD}.interface.name"),
    ("a name for several", {POD: "{count: 2, interface: {name: x}}"}, VALUE, f"{POD}.interface.name"),
    ("a name with two numbers", {POD: "interface: {name: x%d%d}"}, VALUE, f"{POD}.interface.name"),
    ("an MTU", {POD: "interface: {mtu: 1}"}, VALUE, f"{POD}.interface.mtu"),
    ("an address", {POD: "interface: {addresses: [10.0.0.2]}"}, VALUE, f"{POD}.interface.addresses[0]"),
    ("a network's address", {POD: "interface: {addresses: [10.0.0.0/24]}"}, VALUE, f"{POD}.interface.addresses[0]"),
    ("addresses for several", {POD: "{count: 2, interface: {addresses: [10.0.0.2/24]}}"}, VALUE,
     f"{POD}.interface.addresses"),
    ("addresses for all", {POD: "{count: all, interface: {addresses: [10.0.0.2/24]}}"}, VALUE,
     f"{POD}.interface.addresses"),
    ("devices", {POD: "devices: [verbs]"}, VALUE, f"{POD}.devices[0]"),
    ("devices twice", {POD: "devices: [umad, umad]"}, VALUE, f"{POD}.devices[1]"),
    ("locked memory", {POD: "memlock: 64Mi"}, VALUE, f"{POD}.memlock"),
    ("no limit", {POD: "limits: {}"}, VALUE, f"{POD}.limits"),
)  # fmt: skip


def annotation_refusal(annotations: Mapping[str, str]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_pod_request(annotations)
    return caught.value


@pytest.mark.parametrize(
    ("annotations", "code", "where"), [it[1:] for it in ANNOTATIONS], ids=[it[0] for it in ANNOTATIONS]
)
def test_a_bad_annotation_has_its_code_and_place(annotations: Mapping[str, str], code: ErrorCode, where: str) -> None:
    error = annotation_refusal(annotations)
    assert (error.code, error.where) == (code, where)
    assert_complete(error)


def test_refusals_of_annotations_read_as_they_did() -> None:
    assert_as_before("annotations.txt", ((title, str(annotation_refusal(it))) for title, it, _, _ in ANNOTATIONS))


_YAML = st.text("[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\ud800\0\x85\ufeff", max_size=60)
_WORDS = st.sampled_from(
    [
        *(
            "name: ",
            "count: ",
            "match: ",
            "interface: ",
            "{",
            "}",
            "[",
            "]",
            ", ",
            "\n",
            "  ",
            "- ",
            "pci",
            "all",
            "1",
            "a",
        ),
        *(
            "addresses: ",
            "10.0.0.2/24",
            "containers: ",
            "mode: ",
            "exclusive",
            "limits: ",
            "hcaHandles: ",
            ": ",
            "'",
            "&a ",
        ),
    ]
)
_TEXTS = st.text() | _YAML | st.lists(_WORDS, max_size=20).map("".join)


@in_time
@given(_TEXTS, st.sampled_from([PREFIX, POD, f"{PREFIX}/container.a"]))
def test_any_annotation_is_a_value_or_a_complete_refusal(text: str, key: str) -> None:
    try:
        parse_pod_request({key: text})
    except RequestError as error:
        assert_complete(error)


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


# Manifests

MANIFESTS: tuple[tuple[str, str, ErrorCode, int, str], ...] = (
    ("nothing", "", ErrorCode.NOTHING_TO_CHECK, 0, ""),
    ("another kind", "kind: Service\n", ErrorCode.NOTHING_TO_CHECK, 0, ""),
    ("no YAML", "kind: Pod\nmetadata: {name: a\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("a template", "kind: Pod\nmetadata: {{ .Values.metadata }}\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("a key twice", "kind: Pod\nmetadata: {}\nmetadata: {}\n", ErrorCode.MANIFEST_DUPLICATE_KEY, 3, ""),
    ("a second document without ---", "kind: Pod\n...\nkind: Pod\n", ErrorCode.MANIFEST_SYNTAX, 3, ""),
    ("an alias of nothing", "kind: Pod\nspec: *a\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("a tag", "kind: Pod\nspec: !x {}\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("a key of several words", "kind: Pod\n[a]: {}\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("a merge of a text", "kind: Pod\n<<: a\n", ErrorCode.MANIFEST_SYNTAX, 2, ""),
    ("nested too deep", "kind: Pod\nspec: " + "[" * 70, ErrorCode.MANIFEST_SIZE, 2, ""),
    ("a list for a mapping", "kind: Pod\nspec: []\n", ErrorCode.MANIFEST_VALUE, 2, "spec"),
    ("a mapping for a list", "kind: Pod\nspec: {containers: {}}\n", ErrorCode.MANIFEST_VALUE, 2, "spec.containers"),
    ("a number for an annotation", "kind: Pod\nmetadata:\n  annotations: {a: 1}\n", VALUE, 3, "metadata.annotations"),
    ("a number for ours", f"kind: Pod\nmetadata:\n  annotations: {{{PREFIX}: 2}}\n", VALUE, 3, PREFIX),
    ("an annotation", f"kind: Pod\nmetadata:\n  annotations: {{{PREFIX}: '0'}}\n", VALUE, 3, PREFIX),
    ("a container that is not there",
     f"kind: Pod\nmetadata:\n  annotations: {{{PREFIX}/container.mian: '1'}}\nspec: {{containers: [{{name: main}}]}}\n",
     VALUE, 3, f"{PREFIX}/container.mian"),
    ("a key too long",
     f"kind: Pod\nmetadata:\n  annotations: {{{PREFIX}/container.{'a' * 54}: '1'}}\n"
     f"spec: {{containers: [{{name: {'a' * 54}}}]}}\n",
     VALUE, 3, f"{PREFIX}/container.{'a' * 29}..."),
    ("an annotation of the workload", f"kind: Job\nmetadata:\n  annotations: {{{PREFIX}: '1'}}\n",
     ErrorCode.ANNOTATION_PLACE, 3, PREFIX),
    ("a claim's parameters",
     "kind: DeviceClass\napiVersion: resource.k8s.io/v1\nspec:\n  config:\n  - opaque:\n"
     "      driver: rdma.noderesource.dev\n      parameters: {pool: a}\n",
     VALUE, 7, "spec.config[0].opaque.parameters.pool"),
    ("a claim without parameters",
     "kind: DeviceClass\napiVersion: resource.k8s.io/v1\n"
     "spec:\n  config: [{opaque: {driver: rdma.noderesource.dev}}]\n",
     ErrorCode.MANIFEST_VALUE, 4, "spec.config[0].opaque.parameters"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "line", "path"), [it[1:] for it in MANIFESTS], ids=[it[0] for it in MANIFESTS]
)
def test_a_bad_manifest_has_its_code_line_and_key(text: str, code: ErrorCode, line: int, path: str) -> None:
    problem = check(text.encode(), "FILE").problems[0]
    assert (problem.code, problem.line, problem.path) == (code, line, path)
    assert problem.hint


def test_refusals_of_manifests_read_as_they_did() -> None:
    told = ((title, str(check(text.encode(), "FILE").problems[0])) for title, text, *_ in MANIFESTS)
    assert_as_before("manifests.txt", told)


_FIELDS = st.sampled_from(
    [
        "kind",
        "metadata",
        "spec",
        "template",
        "annotations",
        "containers",
        "env",
        "name",
        "items",
        "securityContext",
        PREFIX,
    ]
)
_OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["Pod", "Job", "List", "CronJob"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_FIELDS, inner, max_size=5),
)


@in_time
@given(st.dictionaries(_FIELDS, _OBJECTS, max_size=5))
def test_any_object_is_pods_or_a_complete_refusal(document: dict[str, object]) -> None:
    try:
        read_pods(document, "FILE")
    except RequestError as error:
        assert_complete(error)
    for problem in check(json.dumps(document).encode(), "FILE").problems:
        assert problem.what
        assert problem.hint
        assert str(problem).isprintable()


# Files that commands have saved


NODE: dict[str, Any] = {
    "version": 1,
    "devices": [],
    "gpus": [],
    "rdma_netns": "shared",
    "rdma_cgroup": True,
    "rdma_cm": None,
    "notes": [],
}
SPAN: dict[str, Any] = {
    "name": "a",
    "trace_id": "t",
    "span_id": "a",
    "parent_id": "",
    "start_ns": 1,
    "end_ns": 2,
    "attributes": {},
    "error": "",
}
SNAPSHOTS: tuple[tuple[str, bytes], ...] = (
    ("nothing", b""),
    ("no UTF-8", b"\xff"),
    ("no JSON", b"devices: []"),
    ("a list", b"[]"),
    ("brackets without end", b"[" * 100_000),
    ("a number without end", b'{"version": ' + b"9" * 5000 + b"}"),
    ("too large", b" " * ((16 << 20) + 1)),
    ("another version", b'{"version": 2}'),
    ("no version", b"{}"),
    ("no devices", b'{"version": 1}'),
    ("devices of no kind", json.dumps({**NODE, "devices": {}}).encode()),
    ("a device of no kind", json.dumps({**NODE, "devices": [1]}).encode()),
    ("a device without anything", json.dumps({**NODE, "devices": [{}]}).encode()),
    ("a PCI address of no kind", json.dumps({**NODE, "devices": [{"pci": []}]}).encode()),
    ("a GPU without a place", json.dumps({**NODE, "gpus": [{"pci": "here"}]}).encode()),
    ("a namespace mode that is none", json.dumps({**NODE, "rdma_netns": "both"}).encode()),
    ("notes of no kind", json.dumps({**NODE, "notes": [1]}).encode()),
)
TRACES: tuple[tuple[str, bytes], ...] = (
    ("a trace without spans", b'{"version": 1}'),
    ("spans of no kind", b'{"version": 1, "spans": {}}'),
    ("a span without anything", b'{"version": 1, "spans": [{}]}'),
    ("a time of no kind", json.dumps({"version": 1, "spans": [{**SPAN, "start_ns": "now"}]}).encode()),
    ("a time that is none", json.dumps({"version": 1, "spans": [{**SPAN, "start_ns": 9}]}).encode()),
    ("an id twice", json.dumps({"version": 1, "spans": [SPAN, SPAN]}).encode()),
    ("its own parent", json.dumps({"version": 1, "spans": [{**SPAN, "parent_id": "a"}]}).encode()),
)


def saved_refusal(data: bytes, folder: Path, *, is_trace: bool = False) -> SettingError:
    path = folder / "saved.json"
    path.write_bytes(data)
    with pytest.raises(SettingError) as caught:
        read_trace(path) if is_trace else read_document(path)
    return caught.value


@pytest.mark.parametrize("data", [data for _, data in SNAPSHOTS], ids=[title for title, _ in SNAPSHOTS])
def test_a_file_that_is_no_snapshot_is_refused_completely(data: bytes, tmp_path: Path) -> None:
    error = saved_refusal(data, tmp_path)
    assert (error.code, error.where) == (ErrorCode.SETTING, str(tmp_path / "saved.json"))
    assert_complete(error)


@pytest.mark.parametrize("data", [data for _, data in TRACES], ids=[title for title, _ in TRACES])
def test_a_file_that_is_no_trace_is_refused_completely(data: bytes, tmp_path: Path) -> None:
    error = saved_refusal(data, tmp_path, is_trace=True)
    assert (error.code, error.where) == (ErrorCode.SETTING, str(tmp_path / "saved.json"))
    assert_complete(error)


def test_refusals_of_saved_files_read_as_they_did(tmp_path: Path) -> None:
    told = [(title, saved_refusal(data, tmp_path)) for title, data in SNAPSHOTS]
    told += [(title, saved_refusal(data, tmp_path, is_trace=True)) for title, data in TRACES]
    assert_as_before("saved.txt", ((title, str(it).replace(f"{tmp_path}/", "")) for title, it in told))


def test_the_least_snapshot_is_one(tmp_path: Path) -> None:
    """Else the refusals above might be of something else."""
    (tmp_path / "saved.json").write_text(json.dumps(NODE))
    assert read_document(tmp_path / "saved.json")[0].devices == ()
    (tmp_path / "saved.json").write_text(json.dumps({"version": 1, "spans": [SPAN]}))
    assert read_trace(tmp_path / "saved.json")["spans"] == [SPAN]


_JSON_WORDS = st.sampled_from(
    [*NODE, *SPAN, "spans", "pci", "netdevs", "ports", "char_devices", "virtual", "id", "index", "numa_node", "state"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("0000:10:00.0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_JSON_WORDS, inner, max_size=5),
)


@settings(in_time, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(_JSON_WORDS, _JSON, max_size=6).map(lambda document: {**document, "version": 1}))
def test_any_document_is_a_node_and_spans_or_complete_refusals(tmp_path: Path, document: dict[str, object]) -> None:
    (tmp_path / "saved.json").write_text(json.dumps(document))
    for read in (read_document, read_trace):
        try:
            read(tmp_path / "saved.json")
        except SettingError as error:
            assert_complete(error)


# Answers of the control socket

ANSWERS: tuple[tuple[str, bytes], ...] = (
    ("no message", b"\xff\xff"),
    ("an empty message", b""),
    ("no JSON", pb.StatusReply(json="hello").SerializeToString()),
    ("a list", pb.StatusReply(json="[]").SerializeToString()),
    ("brackets without end", pb.StatusReply(json="[" * 100_000).SerializeToString()),
    ("another version", pb.StatusReply(json='{"version": 99}').SerializeToString()),
    ("no version", pb.StatusReply(json="{}").SerializeToString()),
)


def answer_refusal(data: bytes, folder: Path, *, asks_trace: bool = False) -> NotReadyError:
    server = Server({(SERVICE, "Status"): lambda _call: data, (SERVICE, "Trace"): lambda _call: data})
    with closing(server):
        server.serve_unix(folder / "s")
        with pytest.raises(NotReadyError) as caught:
            ask_trace(folder / "s", "") if asks_trace else ask_status(folder / "s")
    return caught.value


@pytest.mark.parametrize("asks_trace", [False, True], ids=["status", "trace"])
@pytest.mark.parametrize("data", [data for _, data in ANSWERS], ids=[title for title, _ in ANSWERS])
def test_an_answer_that_is_none_is_refused_completely(data: bytes, asks_trace: bool, tmp_path: Path) -> None:
    error = answer_refusal(data, tmp_path, asks_trace=asks_trace)
    assert (error.code, error.where) == (ErrorCode.DAEMON_ABSENT, str(tmp_path / "s"))
    assert_complete(error)


def test_refusals_of_answers_read_as_they_did(tmp_path: Path) -> None:
    told = ((title, str(answer_refusal(data, tmp_path)).replace(str(tmp_path), "")) for title, data in ANSWERS)
    assert_as_before("answers.txt", told)


REQUIRED: tuple[tuple[str | int, ...], ...] = (
    *(("daemon", key) for key in ("version", "pid", "started")),
    *(("runtime", key) for key in ("name", "version", "link", "socket", "error")),
    *(("pools", 0, key) for key in ("name", "modes", "devices", "contested")),
    *(("devices", 0, key) for key in ("name", "pci", "numa_node", "state", "netdevs", "holders", "in_use")),
    *(("sandboxes", 0, key) for key in ("id", "pod", "state", "devices", "isolation", "moves", "undo_error")),
    *((key,) for key in ("guard", "policy", "memlock", "namespaces_held", "rdma_netns", "unserved")),
)
"""What `status` reads of a document without asking whether it is there."""


def test_an_answer_that_lacks_anything_is_refused_and_says_what(tmp_path: Path) -> None:
    build_tree(load_node("eight"), tmp_path / "sys")
    with InsideDaemon(tmp_path, tmp_path / "sys") as daemon:
        daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
        document = ask_status(daemon.settings.control_path)
    look_through(document)
    for path in REQUIRED:
        with pytest.raises(NotReadyError, match=f"`{path[-1]}`") as caught:
            look_through(_without(document, path))
        assert caught.value.code is ErrorCode.DAEMON_ABSENT


def _without(value: Any, path: tuple[str | int, ...]) -> Any:
    step, *rest = path
    if not rest:
        return {key: item for key, item in value.items() if key != step}
    inner = _without(value[step], tuple(rest))
    if isinstance(value, list):
        return [inner if index == step else item for index, item in enumerate(value)]
    return {**value, step: inner}


@in_time
@given(st.dictionaries(_JSON_WORDS | st.sampled_from(["daemon", "policy", "pools", "rules", "sandboxes"]), _JSON))
def test_any_answer_is_a_document_or_a_refusal(document: dict[str, object]) -> None:
    for read in (look_through, node_from, policy_from):
        try:
            read(document)
        except NotReadyError as error:
            assert error.code is ErrorCode.DAEMON_ABSENT
            assert error.what
            assert error.hint
