"""A file's documents are known by their content, and everything that is wrong with them is told with its place."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.commands.validate.files import MAX_CONFIG_BYTES, Checked, check
from nri_rdma.errors import ErrorCode
from nri_rdma.text.placed_yaml import MAX_BYTES

PREFIX = "rdma.noderesource.dev"


def checked(text: str, prefix: str = PREFIX) -> Checked:
    return check(text.encode(), "FILE", prefix)


def told(text: str) -> list[tuple[int, int, str, ErrorCode]]:
    """Line, column, key path and code of each problem."""
    return [(it.line, it.column, it.path, it.code) for it in checked(text).problems]


def pod(annotations: str, containers: str = "[{name: main}, {name: side}]") -> str:
    lines = "".join(f"    {line}\n" for line in annotations.splitlines())
    return f"kind: Pod\nmetadata:\n  name: a\n  annotations:\n{lines}spec: {{containers: {containers}}}\n"


# What a document is


POD = pod(f'{PREFIX}: "1"')
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {config: [{opaque: {driver: rdma.noderesource.dev, parameters: {mode: shared}}}]}}
"""
CDI = "cdiVersion: 0.3.0\nkind: v/c\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n"
_DEVICES = [{"name": "a", "containerEdits": {"env": ["A=1"]}}]
CDI_JSON = json.dumps({"cdiVersion": "0.3.0", "kind": "v/c", "devices": _DEVICES})
CONFIG = '# ours\n\n[pools.a]\nmodes = ["shared"]\n'


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        (POD, "Pod", "a"),
        (json.dumps({"kind": "Pod", "metadata": {"name": "j"}, "spec": {}}, indent="\t"), "Pod", "j"),
        (CLAIM, "ResourceClaim", "c"),
        (CLAIM.replace("Claim\n", "ClaimTemplate\n").replace("/v1", "/v1beta1"), "ResourceClaimTemplate", "c"),
        (CLAIM.replace("ResourceClaim\n", "DeviceClass\n"), "DeviceClass", "c"),
        (CDI, "CDI spec", "v/c"),
        (CDI_JSON, "CDI spec", "v/c"),
        (CONFIG, "configuration", ""),
        ('log_level = "debug"\n', "configuration", ""),
        ('"log_level" = "debug"\n', "configuration", ""),
        ("pools.a.modes = ['shared']\n", "configuration", ""),
        ("[[rules]]  # the first\nallow = false\n", "configuration", ""),
    ],
)
def test_a_document_is_known_by_its_content(text: str, kind: str, name: str) -> None:
    found = checked(text)
    assert found.problems == ()
    assert [(it.kind, it.name, it.skipped) for it in found.documents] == [(kind, name, "")]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("PodTemplate", ("template",)),
        *((kind, ("spec", "template")) for kind in ("Deployment", "ReplicaSet", "ReplicationController")),
        *((kind, ("spec", "template")) for kind in ("StatefulSet", "DaemonSet", "Job")),
        ("CronJob", ("spec", "jobTemplate", "spec", "template")),
    ],
)
def test_the_template_of_every_workload_is_checked(kind: str, way: tuple[str, ...]) -> None:
    document: object = {"metadata": {"annotations": {PREFIX: "{mode: alone}"}}, "spec": {"containers": [{"name": "a"}]}}
    for key in reversed(way):
        document = {key: document}
    assert isinstance(document, dict)
    (problem,) = checked(json.dumps({"kind": kind, **document}, indent=1)).problems
    assert (problem.code, problem.path) == (ErrorCode.ANNOTATION_VALUE, f"{PREFIX}.mode")
    assert problem.line == len(way) + 5


def test_other_documents_are_skipped_and_said_to_be() -> None:
    found = checked(
        f"{POD}---\nkind: Service\n---\n[a]\n---\nversion: 1\n---\nkind: ResourceClaim\napiVersion: other/v1\n"
    )
    assert found.problems == ()
    assert [(it.line, it.skipped) for it in found.documents] == [
        (1, ""),
        (8, "kind Service has nothing for nri-rdma"),
        (10, "it is no object of Kubernetes"),
        (12, "it has no kind"),
        (14, "kind ResourceClaim has nothing for nri-rdma"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "nothing in it could be checked: it is empty"),
        ("# only a comment\n", "nothing in it could be checked: it is empty"),
        ("kind: Service\n", "nothing in it could be checked: kind Service has nothing for nri-rdma"),
        ("hello\n", "nothing in it could be checked: it is no object of Kubernetes"),
        ("kind: List\nitems: []\n", "nothing in it could be checked: it is empty"),
    ],
)
def test_a_file_in_which_nothing_was_checked_is_a_problem(text: str, what: str) -> None:
    (problem,) = checked(text).problems
    assert (problem.code, problem.what, problem.line) == (ErrorCode.NOTHING_TO_CHECK, what, 0)
    assert problem.hint.startswith("give a pod")


def test_each_item_of_a_list_is_a_document_of_its_own() -> None:
    bad = {"kind": "Pod", "metadata": {"name": "bad", "annotations": {PREFIX: "0"}}}
    items = [{"kind": "Pod", "spec": 1}, bad, {"kind": "Service"}]
    found = checked(json.dumps({"kind": "List", "items": items}, indent=1))
    assert [it.skipped for it in found.documents] == ["", "", "kind Service has nothing for nri-rdma"]
    assert [(it.code, it.path) for it in found.problems] == [
        (ErrorCode.MANIFEST_VALUE, "items[0].spec"),
        (ErrorCode.ANNOTATION_VALUE, PREFIX),
    ]


def test_a_broken_document_hides_none_of_the_others() -> None:
    broken = POD.replace('"1"', '"0"')
    assert told(f"a: [\n---\n{broken}---\nb: c: d\n") == [
        (1, 5, "", ErrorCode.MANIFEST_SYNTAX),
        (7, 5, PREFIX, ErrorCode.ANNOTATION_VALUE),
        (10, 5, "", ErrorCode.MANIFEST_SYNTAX),
    ]


# Annotations


def test_a_value_has_the_line_and_column_of_its_key_within_the_block() -> None:
    text = pod(f"{PREFIX}/pod: |\n  - name: rails\n\n    match:\n      numaNode: -1\n")
    assert told(text) == [(9, 11, f"{PREFIX}/pod[0].match.numaNode", ErrorCode.ANNOTATION_VALUE)]


def test_an_unknown_key_has_its_own_line_not_that_of_the_mapping() -> None:
    text = pod(f"{PREFIX}: |\n  name: rails\n  interface:\n    mtu: 9000\n    adresses: []\n")
    assert told(text) == [(9, 9, f"{PREFIX}.interface", ErrorCode.ANNOTATION_UNKNOWN_KEY)]


@pytest.mark.parametrize(
    ("annotation", "place"),
    [
        ("|\n  - count: 1\n  - [\n", (7, 10)),
        ("|\n  a: &x 1\n", (6, 10)),
        ("|\n  count: 1\n  count: 2\n", (7, 7)),
        ("'{count: 1, count: 2}'", (5, len(f"    {PREFIX}: '{{count: 1, ") + 1)),
        ('"{count: 1,\\ncount: 2}"', (5, len(f"    {PREFIX}: ") + 1)),
        (">\n  {count: 1,\n  count: 2}\n", (5, len(f"    {PREFIX}: ") + 1)),
    ],
)
def test_an_error_of_the_text_itself_has_its_place_where_that_is_known(annotation: str, place: tuple[int, int]) -> None:
    (problem,) = checked(pod(f"{PREFIX}: {annotation}")).problems
    assert (problem.line, problem.column) == place
    assert problem.path == PREFIX


def test_in_json_an_annotations_error_is_on_its_line() -> None:
    document = {"kind": "Pod", "metadata": {"annotations": {"a": "b", PREFIX: "- name: a\n  mode: alone\n"}}}
    assert told(json.dumps(document, indent=2)) == [(6, 32, f"{PREFIX}[0].mode", ErrorCode.ANNOTATION_VALUE)]


def test_an_error_in_one_text_hides_none_in_another() -> None:
    text = pod(
        f'{PREFIX}/pod: "{{mode: alone}}"\n{PREFIX}/container.main: "0"\n{PREFIX}/container.sid: ""\n{PREFIX}/x: 1\n'
    )
    assert [(line, path, code) for line, _column, path, code in told(text)] == [
        (5, f"{PREFIX}/pod.mode", ErrorCode.ANNOTATION_VALUE),
        (6, f"{PREFIX}/container.main", ErrorCode.ANNOTATION_VALUE),
        (7, f"{PREFIX}/container.sid", ErrorCode.ANNOTATION_VALUE),
        (8, f"{PREFIX}/x", ErrorCode.ANNOTATION_VALUE),
    ]


def test_what_concerns_several_texts_is_told_once_each_is_right() -> None:
    text = pod(f"{PREFIX}/pod: |\n  - name: a\n{PREFIX}/container.main: |\n  - pool: x\n    name: a\n")
    assert told(text) == [(9, 9, f"{PREFIX}/container.main[0].name", ErrorCode.NAME_CONFLICT)]


def test_two_lists_of_the_pod_are_told_at_one_of_them() -> None:
    assert told(pod(f'{PREFIX}/pod: "1"\n{PREFIX}: "1"')) == [(6, 5, PREFIX, ErrorCode.ANNOTATION_VALUE)]


def test_every_container_that_is_not_there_is_told() -> None:
    text = pod(f"{PREFIX}/pod: |\n  - containers: [sid, main]\n  - containers: [none]\n")
    found = checked(text).problems
    assert [(it.line, it.path, it.what, it.hint) for it in found] == [
        (
            6,
            f"{PREFIX}/pod[0].containers",
            "the pod has no container 'sid'",
            "write side; the containers are main, side",
        ),
        (7, f"{PREFIX}/pod[1].containers", "the pod has no container 'none'", "the containers are main, side"),
    ]


@pytest.mark.parametrize(("length", "problems"), [(53, 0), (54, 1)])
def test_a_containers_name_that_makes_a_key_too_long_is_for_the_pods_list(length: int, problems: int) -> None:
    name = "c" * length
    found = checked(pod(f'{PREFIX}/container.{name}: "1"', f"[{{name: {name}}}]")).problems
    assert len(found) == problems
    for problem in found:
        assert problem.hint == f"ask in {PREFIX}/pod, with containers: [{name}]"


def test_an_annotation_of_the_workload_itself_is_told() -> None:
    text = f"kind: Job\nmetadata:\n  annotations: {{a: b, {PREFIX}/pod: '1'}}\nspec: {{template: {{}}}}\n"
    (problem,) = checked(text).problems
    assert (problem.code, problem.line, problem.column) == (ErrorCode.ANNOTATION_PLACE, 3, 23)
    assert problem.hint == "move it to spec.template.metadata.annotations"


def test_what_is_no_text_is_told_and_the_rest_checked() -> None:
    text = pod(f"{PREFIX}/pod: 2\n{PREFIX}/container.x: on\n{PREFIX}/container.none: '1'")
    assert [(line, code) for line, _, _, code in told(text)] == [
        (5, ErrorCode.ANNOTATION_VALUE),
        (6, ErrorCode.ANNOTATION_VALUE),
        (7, ErrorCode.ANNOTATION_VALUE),
    ]


def test_another_prefix_has_other_keys() -> None:
    text = pod(f'{PREFIX}: "0"\na.b/pod: "0"')
    assert [it.path for it in checked(text, "a.b").problems] == ["a.b/pod"]


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("kind: Pod\nspec: [a]\n", "spec", 2),
        ("kind: Pod\nspec:\n  containers:\n  - name: a\n  - b\n", "spec.containers[1]", 5),
        ("kind: Pod\nmetadata:\n  annotations: [a]\n", "metadata.annotations", 3),
        ("kind: Pod\nmetadata:\n  annotations: {a: b, c: 1}\n", "metadata.annotations", 3),
        ("kind: CronJob\nspec:\n  jobTemplate: 1\n", "spec.jobTemplate", 3),
    ],
)
def test_a_manifest_that_kubernetes_would_not_take_is_told_with_its_line(text: str, path: str, line: int) -> None:
    (problem,) = checked(text).problems
    assert (problem.path, problem.line) == (path, line)
    assert problem.code in {ErrorCode.MANIFEST_VALUE, ErrorCode.ANNOTATION_VALUE}


# Claims


def claim(parameters: str, requests: str = "", config: str = "") -> str:
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: c}}
spec:
  devices:
    {f"requests: {requests}" if requests else ""}
    config:
    - opaque: {{driver: dra.example, parameters: {{anything: 1}}}}
    - opaque:
        driver: rdma.noderesource.dev
        parameters: {parameters}
      {config}
"""


@pytest.mark.parametrize(
    "parameters",
    [
        "{mode: exclusive, isolation: hard, interface: {name: x, mtu: 9000, addresses: [10.0.0.2/24]}}",
        "{name: rails, devices: [uverbs], memlock: unlimited, limits: {hcaHandles: 8}}",
        "{}",
    ],
)
def test_parameters_are_a_request_without_what_the_claim_says(parameters: str) -> None:
    assert told(claim(parameters)) == []


@pytest.mark.parametrize("key", ["pool: a", "match: {}", "count: 1", "containers: [a]", "align: gpu", "gpus: []"])
def test_what_the_claim_decides_is_refused_in_its_parameters(key: str) -> None:
    (problem,) = checked(claim(f"{{mode: shared, {key}}}")).problems
    assert problem.what == "the claim decides it"
    assert problem.path == f"spec.devices.config[1].opaque.parameters.{key.partition(':')[0]}"
    assert (problem.line, problem.column) == (11, 36)


@pytest.mark.parametrize(
    ("parameters", "column", "path", "code"),
    [
        ("{mdoe: shared}", 22, "", ErrorCode.ANNOTATION_UNKNOWN_KEY),
        ("{interface: {mtu: 1}}", 34, ".interface.mtu", ErrorCode.ANNOTATION_VALUE),
        ("{devices: [uverbs, verbs]}", 40, ".devices[1]", ErrorCode.ANNOTATION_VALUE),
        ("text", 9, "", ErrorCode.ANNOTATION_VALUE),
        ("", 9, "", ErrorCode.ANNOTATION_VALUE),
        (f"{{name: {'a' * 10_300}}}", 9, "", ErrorCode.ANNOTATION_SIZE),
    ],
)
def test_wrong_parameters_have_their_place(parameters: str, column: int, path: str, code: ErrorCode) -> None:
    assert told(claim(parameters)) == [(11, column, f"spec.devices.config[1].opaque.parameters{path}", code)]


def test_parameters_that_are_missing_are_told() -> None:
    text = claim("X").replace("        parameters: X\n", "")
    assert told(text) == [(9, 7, "spec.devices.config[1].opaque.parameters", ErrorCode.MANIFEST_VALUE)]


@pytest.mark.parametrize(
    ("requests", "config", "is_for_one"),
    [
        ("", "", True),
        ("[{name: a}]", "", True),
        ("[{name: a, exactly: {count: 1}}]", "", True),
        ("[{name: a, exactly: {count: 2}}]", "", False),
        ("[{name: a, count: 2}]", "", False),
        ("[{name: a, exactly: {allocationMode: All}}]", "", False),
        ("[{name: a, firstAvailable: [{name: x}]}]", "requests: [a/x]", False),
        ("[{name: a}, {name: b}]", "", False),
        ("[{name: a}, {name: b, exactly: {count: 9}}]", "requests: [a]", True),
    ],
)
def test_one_name_is_for_one_device_whichever_way_the_claim_counts(
    requests: str, config: str, is_for_one: bool
) -> None:
    paths = [path for _, _, path, _ in told(claim("{interface: {name: x}}", requests, config))]
    assert paths == ([] if is_for_one else ["spec.devices.config[1].opaque.parameters.interface.name"])


@pytest.mark.parametrize(
    "spec", ["", "spec: 1\n", "spec: {devices: []}\n", "spec: {devices: {config: {}, requests: 1}}\n"]
)
def test_a_claim_without_parameters_is_nothing_to_complain_about(spec: str) -> None:
    assert told(f"kind: ResourceClaim\napiVersion: resource.k8s.io/v1\n{spec}") == []


# Configurations and CDI specs


def test_everything_wrong_in_a_configuration_is_told_with_key_and_line() -> None:
    settings = 'log_levle = "info"\nmemlock = "x"\n'
    pools = "[pools.a]\nselct = 1\n[pools.b]\nmodes = []\n"
    text = f"{settings}{pools}[[rules]]\nx = 1\n[[rules]]\nallow = 1\n"
    assert told(text) == [
        (1, 0, "log_levle", ErrorCode.SETTING),
        (2, 0, "memlock", ErrorCode.SETTING),
        (4, 0, "pools.a", ErrorCode.SETTING),
        (6, 0, "pools.b.modes", ErrorCode.SETTING),
        (8, 0, "rules[0]", ErrorCode.SETTING),
        (10, 0, "rules[1].allow", ErrorCode.SETTING),
    ]


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        ("[pools.a]\nmodes = [\n", 3, ""),
        ("a = 1\nb 2\n", 2, ""),
        ('[pools.a]\nmodes = ["shared"]\n[pools.b]\nmodes = ["shared"]\n', 3, "pools.b"),
        ('allow_default_pool = true\n[pools.a]\nmodes = ["shared"]\n', 1, "allow_default_pool"),
        ("pools = 1\n", 1, "pools"),
        ("pools = {}\n", 1, "pools"),
        ("rules = []\n", 1, "rules"),
        ("rules = 1\n", 1, "rules"),
        ('[[rules]]\npools = ["a"]\n', 2, "rules[0].pools[0]"),
    ],
)
def test_what_is_wrong_with_a_configuration_as_a_whole_is_told(text: str, line: int, path: str) -> None:
    (problem,) = checked(text).problems
    assert (problem.line, problem.path, problem.code) == (line, path, ErrorCode.SETTING)


@pytest.mark.parametrize("data", [b"a = '\xff'\n", b"a = 1\n" + b"#" * MAX_CONFIG_BYTES])
def test_a_configuration_that_is_no_text_or_too_large_is_told(data: bytes) -> None:
    (problem,) = check(data, "FILE").problems
    assert problem.code is ErrorCode.SETTING


def test_everything_wrong_in_a_cdi_spec_is_told_with_key_and_line() -> None:
    assert told("cdiVersion: 0.3.0\nkind: v\ndevices:\n- name: a\n  containerEdits: {env: [A]}\n") == [
        (2, 0, "kind", ErrorCode.CDI_VALUE),
        (5, 0, "devices[0].containerEdits.env[0]", ErrorCode.CDI_VALUE),
    ]


@pytest.mark.parametrize(
    "text", ['{"cdiVersion": "0.3.0", ', "cdiVersion: 0.3.0\nkind: [\n", '{\n  "cdiVersion": 1,\n  ]']
)
def test_a_broken_cdi_spec_is_one_still(text: str) -> None:
    assert [code for *_, code in told(text)] == [ErrorCode.CDI_SYNTAX]


# Anything


_PIECES = st.sampled_from(
    [
        "kind: Pod\n", "kind: Deployment\n", "---\n", "items:\n",
        "kind: ResourceClaim\napiVersion: resource.k8s.io/v1\n",
        "metadata:\n", "  annotations:\n", f"    {PREFIX}: ", f"    {PREFIX}/container.a: ", "spec:\n", "  template:\n",
        "  containers:\n", "  - name: a\n", "|\n", "      - count: 2\n", "'1'\n", "2\n", "{mode: alone}\n", "[a]\n",
        "  devices: {config: [{opaque: {driver: rdma.noderesource.dev, parameters: {mode: 1}}}]}\n",
        "cdiVersion: 0.3.0\n",
        "[pools.a]\n", 'modes = ["shared"]\n', "log_level = 1\n", "&a ", "*a ",
        "\ufeff", "\0", "\t", "\xff", "\r", "\x85",
    ]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=14).map("".join) | st.text(max_size=60))
def test_any_text_is_checked_and_every_problem_has_code_place_and_next_step(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    found = check(data, "FILE")
    assert found.documents or found.problems
    for problem in found.problems:
        assert problem.what
        assert problem.hint
        assert problem.line <= len(re.split("[\n\r\x85\u2028\u2029]", text)) + 1  # YAML's lines, and its end
        assert "\n" not in str(problem)


def test_a_file_without_end_is_told_to_be_too_large() -> None:
    (problem,) = check(b" " * (MAX_BYTES + 1), "FILE").problems
    assert problem.code is ErrorCode.MANIFEST_SIZE
