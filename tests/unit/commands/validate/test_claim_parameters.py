"""Parameters in resource claims are checked as the requests that they are."""

from __future__ import annotations

import pytest

from nri_rdma.errors import ErrorCode
from tests.unit.commands.validate.checking import checked, told

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


CLASS = """
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nics}
spec:
  config:
  - opaque: {driver: rdma.noderesource.dev, parameters: PARAMETERS}
"""
ONE = "[{name: nic, exactly: {deviceClassName: nics}}]"


@pytest.mark.parametrize(
    ("of_class", "of_claim", "what"),
    [
        ("{mode: exclusive}", "{interface: {name: x}}", ""),
        ("{mode: shared}", "{mode: exclusive, interface: {name: x}}", ""),
        ("{mode: exclusive}", "{mode: shared, interface: {name: x}}", "in mode shared the netdev stays on the host"),
        ("{mode: shared}", "{interface: {name: x}}", "in mode shared the netdev stays on the host"),
        ("{interface: {name: x}}", "{mode: shared}", "in mode shared the netdev stays on the host"),
        ("{interface: {addresses: ['fd00::2/64']}}", "{interface: {mtu: 1000}}", "1000 is too small"),
        ("{mode: shared}", "{mdoe: exclusive}", "unknown key 'mdoe'"),
    ],
)
def test_a_claim_is_judged_with_what_its_class_says_in_the_same_file(of_class: str, of_claim: str, what: str) -> None:
    problems = checked(claim(of_claim, ONE) + CLASS.replace("PARAMETERS", of_class)).problems
    assert len(problems) == (1 if what else 0)
    for problem in problems:
        assert what in problem.what
        assert problem.line == 11  # the claim's parameters, which are the last word
        is_merged = "unknown key" not in what
        assert problem.what.startswith("request nic, with what class nics says: ") is is_merged


def test_the_gpus_of_a_claim_are_not_judged_with_a_config_that_names_no_request() -> None:
    gpus = "[{name: gpu, exactly: {deviceClassName: gpus, count: 2}}, {name: nic, exactly: {deviceClassName: nics}}]"
    of_class = CLASS.replace("PARAMETERS", "{mode: exclusive}")
    assert checked(claim("{interface: {name: x}}", gpus) + of_class).problems == ()


def test_parameters_of_one_claim_are_judged_together_for_each_request() -> None:
    shared = "- opaque: {driver: rdma.noderesource.dev, parameters: {interface: {name: x}}}\n      requests: [b]"
    two = "[{name: a, exactly: {deviceClassName: nics}}, {name: b, exactly: {deviceClassName: nics}}]"
    text = claim("{mode: shared}", two).rstrip() + f"\n    {shared}\n"
    (problem,) = checked(text).problems
    assert problem.what.startswith("request b, with what config[1] says: in mode shared the netdev stays on the host")
    assert problem.path == "spec.devices.config[2].opaque.parameters.interface"
    assert checked(text.replace("{mode: shared}", "{mode: exclusive}")).problems == ()


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
        ("[{name: a, firstAvailable: [{name: x}]}]", "requests: [a/x]", True),
        ("[{name: a, firstAvailable: [{name: x, count: 2}, {name: w}]}]", "requests: [a/w]", True),
        ("[{name: a, firstAvailable: [{name: x, count: 2}, {name: w}]}]", "requests: [a/x]", False),
        ("[{name: a, firstAvailable: [{name: x, count: 2}, {name: w}]}]", "requests: [a]", False),
        ("[{name: a, firstAvailable: [{name: x}, {name: w}]}]", "requests: [a]", True),
        ("[{name: a}, {name: b}]", "", False),
        ("[{name: a, exactly: {deviceClassName: gpus}}, {name: b, exactly: {deviceClassName: nics}}]", "", True),
        ("[{name: a}, {name: b, exactly: {count: 9}}]", "requests: [a]", True),
    ],
)
def test_one_name_is_for_one_device_whichever_way_the_claim_counts(
    requests: str, config: str, is_for_one: bool
) -> None:
    paths = [path for _, _, path, _ in told(claim("{interface: {name: x}}", requests, config))]
    assert paths == ([] if is_for_one else ["spec.devices.config[1].opaque.parameters.interface.name"])


@pytest.mark.parametrize("words", ["addresses: [[10.0.0.2/24], [10.0.1.2/24]]", "hardwareAddr: '02:00:5e:00:00:01'"])
def test_what_each_device_has_alone_is_not_for_several_requests(words: str) -> None:
    """The driver reads a config for each request anew, with the number of that request's devices."""
    two = "[{name: a, exactly: {deviceClassName: nics}}, {name: b, exactly: {deviceClassName: nics}}]"
    key = words.partition(":")[0]
    (problem,) = checked(claim(f"{{interface: {{{words}}}}}", two)).problems
    assert problem.path == f"spec.devices.config[1].opaque.parameters.interface.{key}"
    assert problem.hint == f"write a config for each request (`requests: [NAME]`), with its own {key}"


def test_an_alternative_that_the_request_does_not_have_is_told() -> None:
    text = claim("{mode: shared}", "[{name: a, firstAvailable: [{name: x}]}]", "requests: [a/z]")
    (problem,) = checked(text).problems
    assert (problem.what, problem.hint) == ("the claim has no request 'a/z'", "write a/x; the requests are a, a/x")


def test_the_keys_that_are_offered_are_those_that_a_claim_may_have() -> None:
    (problem,) = checked(claim("{colour: []}")).problems
    assert problem.hint == (
        "the keys are name, mode, isolation, use, prove, userspace, roceVersion, interface, routes, rules, neighbors,"
        " ethtool, devices,"
        " memlock, limits"
    )


@pytest.mark.parametrize("driver", ["rdma.nodersource.dev", "rdma.noderesources.dev", "RDMA.noderesource.dev"])
def test_a_driver_whose_name_has_a_typo_is_told_at_its_place(driver: str) -> None:
    (problem,) = checked(claim("{mdoe: shared}").replace("rdma.noderesource.dev", driver)).problems
    assert (problem.line, problem.column, problem.code) == (10, 9, ErrorCode.MANIFEST_VALUE)
    assert problem.path == "spec.devices.config[1].opaque.driver"
    assert problem.hint == "write rdma.noderesource.dev"


def test_parameters_for_other_drivers_are_skipped_with_a_sentence() -> None:
    found = checked(claim("{mdoe: shared}").replace("rdma.noderesource.dev", "nic.example.com"))
    assert found.problems == ()
    sentence = "kind ResourceClaim: no parameters for the driver rdma.noderesource.dev, not read"
    assert [it.skipped for it in found.documents] == [sentence]


def test_another_prefix_is_the_name_of_another_driver() -> None:
    text = claim("{mdoe: shared}")
    assert checked(text, "nic.example.com").problems == ()
    assert [it.skipped for it in checked(text, "dra.example").documents] == [""]


@pytest.mark.parametrize(
    "spec", ["", "spec: 1\n", "spec: {devices: []}\n", "spec: {devices: {config: {}, requests: 1}}\n"]
)
def test_a_claim_without_parameters_is_nothing_to_complain_about(spec: str) -> None:
    assert told(f"kind: ResourceClaim\napiVersion: resource.k8s.io/v1\n{spec}") == []


JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: j}}
spec:
  template:
    spec:
      hostNetwork: {host_network}
      resourceClaims: [{{name: nic, {reference}: c}}]
      containers: [{{name: main}}]
---
"""


@pytest.mark.parametrize(
    ("host_network", "reference", "mode", "is_told"),
    [
        ("true", "resourceClaimName", "exclusive", True),
        ("true", "resourceClaimName", "shared", False),
        ("false", "resourceClaimName", "exclusive", False),
        ("true", "resourceClaimTemplateName", "exclusive", False),
    ],
)
def test_a_claim_for_a_netdev_of_a_pod_that_shall_be_on_the_hosts_network_is_told(
    host_network: str, reference: str, mode: str, is_told: bool
) -> None:
    text = JOB.format(host_network=host_network, reference=reference)
    asked = "[{name: nic, exactly: {deviceClassName: nics}}]"
    problems = checked(text + claim(f"{{mode: {mode}}}", asked)).problems
    assert [(it.line, it.code) for it in problems] == [(11, ErrorCode.HOST_NETWORK)] * is_told
    assert all("request nic is for mode exclusive" in it.what for it in problems)


@pytest.mark.parametrize(
    "spec", ["1", "{template: 1}", "{template: {spec: 1}}", "{template: {spec: {hostNetwork: true}}}"]
)
def test_a_workload_without_a_pod_has_no_claims(spec: str) -> None:
    assert not checked(f"apiVersion: batch/v1\nkind: Job\nspec: {spec}\n---\n{claim('{mode: exclusive}')}").warnings


def test_parameters_for_a_request_that_the_claim_has_not_are_told_with_the_near_one() -> None:
    (problem,) = checked(claim("{mode: shared}", ONE, "requests: [nics]")).problems
    assert (problem.code, problem.what) == (ErrorCode.MANIFEST_VALUE, "the claim has no request 'nics'")
    assert problem.hint == "write nic; the requests are nic"
