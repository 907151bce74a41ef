"""A file's documents are known by their content, and everything that is wrong with them is told with its place."""

from __future__ import annotations

import json

import pytest

from nri_rdma.commands.validate.files import MAX_CONFIG_BYTES, check
from nri_rdma.errors import ErrorCode
from nri_rdma.text.placed_yaml import MAX_BYTES
from tests.unit.commands.validate.checking import PREFIX, checked, pod, told

# What a document is


POD = pod(f'{PREFIX}: "1"')
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {config: [{opaque: {driver: rdma.noderesource.dev, parameters: {mode: shared}}}]}}
"""
TEMPLATE = CLAIM.replace("Claim\n", "ClaimTemplate\n").replace("/v1", "/v1beta1")
CDI = "cdiVersion: 0.3.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n"
_DEVICES = [{"name": "a", "containerEdits": {"env": ["A=1"]}}]
CDI_JSON = json.dumps({"cdiVersion": "0.3.0", "kind": "ve/cl", "devices": _DEVICES})
CONFIG = '# ours\n\n[pools.a]\nmodes = ["shared"]\n'


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        (POD, "Pod", "a"),
        (json.dumps({"kind": "Pod", "metadata": {"name": "j"}, "spec": {}}, indent="\t"), "Pod", "j"),
        (CLAIM, "ResourceClaim", "c"),
        (TEMPLATE.replace("spec: {", "spec: {spec: {").replace("]}}\n", "]}}}\n"), "ResourceClaimTemplate", "c"),
        (
            CLAIM.replace("ResourceClaim\n", "DeviceClass\n").replace("{devices: {", "{").replace("]}}", "]}"),
            "DeviceClass",
            "c",
        ),
        (CDI, "CDI spec", "ve/cl"),
        (CDI_JSON, "CDI spec", "ve/cl"),
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


def test_other_documents_are_skipped_and_said_to_be() -> None:
    found = checked(
        f"{POD}---\nkind: Service\n---\n[a]\n---\nversion: 1\n---\nkind: ResourceClaim\napiVersion: other/v1\n"
    )
    assert found.problems == ()
    assert [(it.line, it.skipped) for it in found.documents] == [
        (1, ""),
        (8, "kind Service: no pod template in it, not read"),
        (10, "it is no object of Kubernetes"),
        (12, "it has no kind"),
        (14, "kind ResourceClaim: no pod template in it, not read"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "nothing in it could be checked: it is empty"),
        ("# only a comment\n", "nothing in it could be checked: it is empty"),
        ("hello\n", "nothing in it could be checked: it is no object of Kubernetes"),
        ("kind: List\nitems: []\n", "nothing in it could be checked: it is empty"),
    ],
)
def test_a_file_without_an_object_is_a_problem(text: str, what: str) -> None:
    (problem,) = checked(text).problems
    assert (problem.code, problem.what, problem.line) == (ErrorCode.NOTHING_TO_CHECK, what, 0)
    assert problem.hint.startswith("give a pod")


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("kind: Service\n", "kind Service: no pod template in it, not read"),
        ("replicas: 2\n", "it has no kind"),
        ("hello\n---\nkind: Service\n", "it is no object of Kubernetes"),
    ],
)
def test_a_file_of_objects_that_are_not_for_nri_rdma_is_skipped(text: str, skipped: str) -> None:
    found = checked(text)
    assert (found.documents[0].skipped, found.problems) == (skipped, ())


def test_each_item_of_a_list_is_a_document_of_its_own() -> None:
    bad = {"kind": "Pod", "metadata": {"name": "bad", "annotations": {PREFIX: "0"}}}
    items = [{"kind": "Pod", "spec": 1}, bad, {"kind": "Service"}]
    found = checked(json.dumps({"kind": "List", "items": items}, indent=1))
    assert [it.skipped for it in found.documents] == ["", "", "kind Service: no pod template in it, not read"]
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
        ('[pools.a]\nmodes = ["shared"]\n[pools.b]\nmodes = ["shared"]\n', 3, "pools.b"),
        ('allow_default_pool = true\n[pools.a]\nmodes = ["shared"]\n', 1, "allow_default_pool"),
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


def test_a_file_without_end_is_told_to_be_too_large() -> None:
    (problem,) = check(b" " * (MAX_BYTES + 1), "FILE").problems
    assert problem.code is ErrorCode.MANIFEST_SIZE
