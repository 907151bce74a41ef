"""What specs ask of us is looked at before a container does."""

import json
import re
from pathlib import Path

import pytest

from nri_rdma.cdi.asking import inspect_asking
from nri_rdma.errors import ErrorCode

PREFIX = "rdma.noderesource.dev"


def spec(annotations: dict[str, str], of_spec: dict[str, str] | None = None) -> bytes:
    """A good one, indented: line 9 is the device's annotation."""
    node = {"path": "/dev/infiniband/uverbs0"}
    document = {
        "cdiVersion": "0.6.0",
        "kind": "a.b/cd",
        "annotations": of_spec or {},
        "devices": [{"name": "x", "annotations": annotations, "containerEdits": {"deviceNodes": [node]}}],
    }
    return json.dumps(document, indent=1).encode()


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("{mode: exclusiv}", ErrorCode.ANNOTATION_VALUE, "mode: 'exclusiv' is not allowed"),
        ("{pool: x}", ErrorCode.ANNOTATION_VALUE, "pool: its devices are chosen already"),
        ("{mode: shared, interface: {mtu: 9000}}", ErrorCode.ANNOTATION_VALUE, "interface: in mode shared the netdev"),
        ("{cuont: 1}", ErrorCode.ANNOTATION_UNKNOWN_KEY, "unknown key 'cuont'"),
        ("{mtu: 9", ErrorCode.ANNOTATION_SYNTAX, ""),
    ],
)
def test_what_it_asks_and_cannot_be_is_told_with_its_line(text: str, code: ErrorCode, what: str) -> None:
    (error,) = inspect_asking(spec({PREFIX: text}), "a.json", PREFIX).problems
    assert (error.code, error.line) == (code, 9)
    assert error.path == f"devices[0].annotations['{PREFIX}']"
    assert error.what.startswith(what)
    assert error.hint


def test_keys_of_pods_are_told_too_and_those_of_the_whole_spec() -> None:
    inspected = inspect_asking(spec({f"{PREFIX}/pod": "2"}, {PREFIX: "{count: 2}"}), "a.json", PREFIX)
    assert [error.code for error in inspected.problems] == [
        ErrorCode.ANNOTATION_VALUE,
        ErrorCode.ANNOTATION_UNKNOWN_KEY,
    ]
    assert inspected.spec is not None


def test_what_is_good_or_none_of_ours_is_no_problem() -> None:
    good = spec({PREFIX: "{mode: exclusive, interface: {mtu: 9000}}", "other.example.com": "{mode: exclusiv}"})
    assert inspect_asking(good, "a.json", PREFIX).problems == ()
    assert inspect_asking(spec({PREFIX: "{mode: exclusiv}"}), "a.json", "ours.example.com").problems == ()


def test_a_file_that_is_no_spec_is_told_as_such_alone() -> None:
    (error,) = inspect_asking(b'{"cdiVersion": "0.6.0", "kind": "a.b/cd"}', "a.json", PREFIX).problems
    assert "devices" in error.what


@pytest.mark.parametrize(
    ("nodes", "is_good"),
    [(["uverbs0"], True), (["uverbs0", "uverbs1"], False), (["uverbs0", "umad0", "rdma_cm"], True), ([], True)],
)
def test_a_fixed_name_is_for_a_cdi_device_of_one_rdma_device(nodes: list[str], is_good: bool) -> None:
    text = "{mode: exclusive, interface: {name: net1, addresses: [192.0.2.7/24]}}"
    document = json.loads(spec({PREFIX: text}))
    edits = document["devices"][0]["containerEdits"]
    edits["deviceNodes"] = [{"path": f"/dev/infiniband/{name}"} for name in nodes]
    edits["env"] = ["A=b"]
    for place in (document["devices"][0], document):
        document["annotations"] = document["devices"][0]["annotations"] = {}
        place["annotations"] = {PREFIX: text}
        problems = inspect_asking(json.dumps(document).encode(), "a.json", PREFIX).problems
        assert (problems == ()) is is_good


def test_the_first_spec_of_the_documentation_is_good() -> None:
    page = (Path(__file__).parents[3] / "docs/cdi.md").read_text()
    (block, *_) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert "interface" in block
    assert inspect_asking(block.encode(), "claim.yaml", PREFIX).problems == ()
