"""Bad manifests: the code, the line and the key of each refusal, and its words in golden/."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.commands.validate.files import check
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.annotations import PREFIX
from nri_rdma.text.manifest import read_pods
from tests.unit.golden import assert_as_before
from tests.unit.rigs.bad_input import assert_complete, in_time

# Manifests

VALUE = ErrorCode.ANNOTATION_VALUE

MANIFESTS: tuple[tuple[str, str, ErrorCode, int, str], ...] = (
    ("nothing", "", ErrorCode.NOTHING_TO_CHECK, 0, ""),
    ("no object", "hello\n", ErrorCode.NOTHING_TO_CHECK, 0, ""),
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
