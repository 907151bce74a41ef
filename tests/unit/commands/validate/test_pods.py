"""Everything that is wrong with the annotations of pods and of workloads is told at its place."""

from __future__ import annotations

import json

import pytest

from nri_rdma.errors import ErrorCode
from tests.unit.commands.validate.checking import PREFIX, checked, pod, told


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


# Annotations


def test_a_value_has_the_line_and_column_of_its_key_within_the_block() -> None:
    text = pod(f"{PREFIX}/pod: |\n  - name: rails\n\n    match:\n      numaNode: -1\n")
    assert told(text) == [(9, 11, f"{PREFIX}/pod[0].match.numaNode", ErrorCode.ANNOTATION_VALUE)]


def test_all_that_is_wrong_in_a_text_is_told_each_at_its_own_line() -> None:
    text = pod(
        f"{PREFIX}/pod: |\n"
        "  - interface:\n"
        "      mtu: 60\n"
        "      colour: red\n"
        "    routes:\n"
        "    - destination: 10.0.0.1/8\n"
        "      scope: 253\n"
        "    - gateway: fd00::1\n"
        "      destination: 10.0.0.0/8\n"
        "  - count: 0\n"
    )
    value, unknown = ErrorCode.ANNOTATION_VALUE, ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert told(text) == [
        (7, 11, f"{PREFIX}/pod[0].interface.mtu", value),
        (8, 11, f"{PREFIX}/pod[0].interface", unknown),
        (10, 11, f"{PREFIX}/pod[0].routes[0].destination", value),
        (12, 11, f"{PREFIX}/pod[0].routes[1].gateway", value),
        (14, 9, f"{PREFIX}/pod[1].count", value),
    ]


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


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("{count: 2, containers: [main]}", """'{"count": 2, "containers": ["main"]}'"""),
        ("[{count: 2}]", """'[{"count": 2}]'"""),
        ("true", '"true"'),
        ("2", '"2"'),
        ("", '""'),
        ("{name: it's}", "..."),
        (f"[{', '.join('a' * 30)}]", "..."),
    ],
)
def test_the_hint_for_what_is_no_text_is_yaml(written: str, text: str) -> None:
    (problem,) = checked(pod(f"{PREFIX}: {written}")).problems
    assert problem.hint == f"put it in quotes, such as {PREFIX}: {text}, or below {PREFIX}: |"


def test_a_prefix_with_a_typo_is_told_with_the_right_key() -> None:
    found = checked(pod('rdma.nodersource.dev/pod: "2"\nnvidia.com/gpu: "2"')).problems
    assert [(it.line, it.column, it.path, it.code, it.what, it.hint) for it in found] == [
        (
            5,
            5,
            "rdma.nodersource.dev/pod",
            ErrorCode.ANNOTATION_UNKNOWN_KEY,
            "nothing reads this key",
            f"write {PREFIX}/pod",
        )
    ]


def test_a_prefix_with_a_typo_is_told_where_no_pod_is() -> None:
    text = 'kind: Other\nspec:\n  podMetadata:\n    annotations:\n      rdma.noderesource.de/pod: "2"\n'
    assert told(text) == [(5, 7, "rdma.noderesource.de/pod", ErrorCode.ANNOTATION_UNKNOWN_KEY)]


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


FOUR = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: d}}
spec:
  replicas: 4
  template:
    metadata:
      annotations:
        {PREFIX}/pod: |
          - count: 1
            mode: exclusive
            interface: {{mtu: 9000, addresses: [10.0.0.2/24]}}
    spec: {{containers: [{{name: main}}]}}
"""


def test_the_addresses_of_several_pods_are_a_warning_with_its_place_and_no_problem() -> None:
    found = checked(FOUR)
    assert found.problems == ()
    (warning,) = found.warnings
    assert (warning.line, warning.column, warning.path) == (12, 36, f"{PREFIX}/pod[0].interface.addresses")
    assert warning.what == "every pod of this Deployment would have the same addresses"
    assert str(warning).startswith("warning: every pod")


def test_a_default_route_of_the_table_main_is_a_warning() -> None:
    text = "{mode: exclusive, interface: {addresses: [10.0.0.2/24]}, routes: [{destination: %s, gateway: 10.0.0.9%s}]}"
    (warning,) = checked(pod(f"{PREFIX}: '{text % ('0.0.0.0/0', '')}'")).warnings
    assert warning.path == f"{PREFIX}.routes[0].destination"
    assert warning.what == "a default route leads the API server, services and DNS over the netdev, too"
    for others in (("10.0.0.0/8", ""), ("0.0.0.0/0", ", table: 100")):
        assert checked(pod(f"{PREFIX}: '{text % others}'")).warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        FOUR.replace("replicas: 4", "replicas: 1"),
        FOUR.replace(", addresses: [10.0.0.2/24]", ""),
        pod(f"{PREFIX}: '{{mode: exclusive, interface: {{addresses: [10.0.0.2/24]}}}}'"),
    ],
)
def test_one_pod_may_have_addresses_and_several_without_are_fine(text: str) -> None:
    found = checked(text)
    assert (found.problems, found.warnings) == ((), ())


@pytest.mark.parametrize(("mode", "is_told"), [("mode: exclusive, ", True), ("mode: shared, ", False), ("", False)])
def test_a_netdev_for_a_pod_on_the_hosts_network_is_told(mode: str, is_told: bool) -> None:
    text = pod(f'rdma.noderesource.dev/pod: "[{{{mode}count: 1}}]"').replace("spec: {", "spec: {hostNetwork: true, ")
    assert [it.code for it in checked(text).problems] == [ErrorCode.HOST_NETWORK] * is_told
    assert not checked(text.replace("hostNetwork: true, ", "")).problems


@pytest.mark.parametrize(("request_name", "is_told"), [("rail_nics", True), ("rail-nics", False), ("", False)])
def test_a_container_that_names_a_request_which_its_claim_lacks_is_told(request_name: str, is_told: bool) -> None:
    """The kubelet would start it without the claim's devices."""
    claim = "\n".join(
        (
            "apiVersion: resource.k8s.io/v1",
            "kind: ResourceClaimTemplate",
            "metadata: {name: nics}",
            "spec: {spec: {devices: {requests: [{name: gpu}, {name: rail-nics}]}}}",
            "---",
        )
    )
    spec = "{containers: [{name: main, resources: {claims: [{name: devices, request: gpu}, {name: devices"
    spec += f", request: '{request_name}'" * bool(request_name) + "}]}}]"
    spec += ", resourceClaims: [{name: devices, resourceClaimTemplateName: nics}]}"
    problems = checked(f"{claim}\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n").problems
    assert [(it.line, it.path) for it in problems] == [(8, "spec.containers[0].resources.claims[1].request")] * is_told
    assert [it.hint for it in problems] == ["write rail-nics; the requests are gpu, rail-nics"] * is_told
