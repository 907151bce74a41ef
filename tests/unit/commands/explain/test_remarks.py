"""What stands around a request and works against it is told, by `validate` with its line and by `explain` as a note."""

from __future__ import annotations

import pytest

from tests.unit.commands.cli.program import PROJECT, nri_rdma
from tests.unit.commands.validate.checking import PREFIX, checked

ASKS = f'{{{PREFIX}: "{{mode: shared}}"}}'
SNAPSHOT = PROJECT / "docs/examples/node.json"


def pod(container: str = "", spec: str = "", annotations: str = ASKS, labels: str = "{}") -> str:
    return (
        f"kind: Pod\nmetadata:\n  name: a\n  labels: {labels}\n  annotations: {annotations}\n"
        f"spec:\n  containers:\n  - name: main\n    {container}\n  {spec}\n"
    )


def named(name: str) -> str:
    return f'{{{PREFIX}: "{{mode: exclusive, interface: {{name: {name}}}}}"}}'


GPUS = "resources: {limits: {nvidia.com/gpu: 8}}"
TOLD = {
    "args": (pod('args: ["--device=$(RDMA_DEVICES_0)"]'), "args[0]", "$RDMA_DEVICES_0'"),
    "command": (pod('command: [a, "$(NCCL_IB_HCA)"]'), "command[1]", "[sh, -c]"),
    "env": (pod('env: [{name: X, value: "$(UCX_NET_DEVICES),lo"}]'), "env[0].value", "let a shell expand it"),
    "label": (pod(labels=f'{{{PREFIX}/pod: "1"}}', annotations="{}"), "metadata.labels", "move"),
    "label of another name": (
        pod(labels=f'{{{PREFIX}/pool: "x"}}', annotations="{}"),
        "metadata.labels",
        f"write {PREFIX}/pod into the annotations",
    ),
    "no GPU": (
        pod("resources: {limits: {cpu: 2}}", annotations=f'{{{PREFIX}/pod: "{{perGPU: 1}}"}}'),
        "perGPU",
        "write count",
    ),
    "named, with a list of its own": (
        pod(annotations=f'{{{PREFIX}/pod: "{{containers: [main]}}", {PREFIX}/container.main: "2"}}'),
        f"{PREFIX}/pod",
        f"write the request into {PREFIX}/container.main",
    ),
    "nobody's": (
        pod(annotations=f'{{{PREFIX}/pod: "1", {PREFIX}/container.main: ""}}'),
        f"{PREFIX}/pod",
        "or remove it",
    ),
    "netdevs": (
        pod('args: ["$(RDMA_NETDEVS_0)"]', annotations=f'{{{PREFIX}/pod: "1"}}'),
        "args[0]",
        "$RDMA_NETDEVS_0'",
    ),
    "of a claim": (
        pod('resources: {claims: [{name: nics}]}\n    args: ["$(RDMA_DEVICES_NICS_A)"]', annotations="{}"),
        "args[0]",
        "$RDMA_DEVICES_NICS_A'",
    ),
    "eth0": (pod(annotations=named("eth0")), "interface.name", "another name"),
    "counted": (
        pod(f"resources: {{limits: {{{PREFIX}/nic: 2}}}}", annotations="{}"),
        "spec.containers[0].resources",
        f'{PREFIX}/pod: "2"',
    ),
    "privileged": (pod("securityContext: {privileged: true}"), "securityContext.privileged", "remove privileged"),
    "hostPath": (
        pod(spec="volumes: [{name: ib, hostPath: {path: /dev/infiniband/}}]"),
        "spec.volumes[0]",
        "remove the volume",
    ),
    "hostNetwork": (pod(spec="hostNetwork: true"), "spec.hostNetwork", "remove hostNetwork: true, unless"),
    "shm": (pod(GPUS), "spec.containers[0]", "{emptyDir: {medium: Memory}} at /dev/shm"),
    "share": (
        pod("resources: {limits: {rdma/hca: 1}}, securityContext: {privileged: true}".replace("}, s", "}\n    s")),
        "securityContext.privileged",
        "remove privileged",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_each_is_a_warning_at_its_place_with_what_to_write(case: str) -> None:
    text, path, hint = TOLD[case]
    told = checked(text)
    (warning,) = told.warnings
    assert told.problems == ()
    assert path in warning.path
    assert hint in warning.hint
    assert warning.line >= 4


@pytest.mark.parametrize(
    "text",
    [
        pod(annotations=f'{{{PREFIX}/container.main: "2"}}'),
        pod('args: ["$$(RDMA_DEVICES_0)", "$RDMA_DEVICES_0", "$(HOME)"]'),
        pod('args: ["$(RDMA_DEVICES_0)", "$(NCCL_IB_HCA)"]', annotations="{}"),
        pod('args: ["$(NCCL_DEBUG)", "$(UCX_TLS)"]'),
        pod('envFrom: [{configMapRef: {name: c}}]\n    args: ["$(NCCL_IB_HCA)"]'),
        pod('args: ["$(NCCL_SOCKET_IFNAME)", "$(RDMA_NETDEVS_0)"]'),
        pod('args: ["$(NCCL_IB_HCA)"]', annotations=f'{{{PREFIX}/pod: "{{use: storage}}"}}'),
        pod("resources: {limits: {nvidia.com/gpu: 2}}", annotations=f'{{{PREFIX}/pod: "{{perGPU: 1}}"}}'),
        pod("resources: {limits: {example.com/vgpu: 2}}", annotations=f'{{{PREFIX}/pod: "{{perGPU: 1}}"}}'),
        pod("resources: {claims: [{name: gpu}]}", annotations=f'{{{PREFIX}/pod: "{{perGPU: 1}}"}}'),
        pod(annotations=f"{{{PREFIX}/pod: \"{{perGPU: 1, gpus: ['0000:1b:00.0']}}\"}}"),
        pod('env: [{name: NCCL_IB_HCA, value: mlx5_0}]\n    args: ["$(NCCL_IB_HCA)"]'),
        pod("securityContext: {privileged: true}", annotations="{}"),
        pod(f"{GPUS}\n    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]"),
        pod(GPUS, spec="hostIPC: true"),
        pod(GPUS.replace("8", "2")),
        pod(GPUS.replace("8", f"'{'9' * 5000}'")),
        pod(f"resources: {{limits: {{{PREFIX}/nic: 2}}}}"),
        pod(f"resources: {{limits: {{{PREFIX}/guard: 1}}}}", annotations="{}"),
        pod(annotations=named("ib0")),  # NCCL would bootstrap over it, had it not NCCL_SOCKET_IFNAME from us
        pod(spec="hostNetwork: true", annotations="{}"),
        pod(spec="hostNetwork: false"),
        pod(spec="volumes: [{name: ib, hostPath: {path: /data}}, {name: tmp, emptyDir: {}}]"),
    ],
)
def test_what_works_has_no_warning(text: str) -> None:
    told = checked(text)
    assert (told.problems, told.warnings) == ((), ())


@pytest.mark.parametrize("case", sorted(set(TOLD) - {"privileged", "share"}))
def test_explain_tells_it_too(case: str) -> None:
    text, _, hint = TOLD[case]
    done = nri_rdma("explain", "-", "--snapshot", SNAPSHOT, "--allow-default-pool", columns=999, text=text)
    assert hint in done.stdout


def test_explain_says_of_a_resource_that_no_pool_has_it() -> None:
    text = pod("resources: {limits: {rdma/hca: 1}}", annotations="{}")
    done = nri_rdma("explain", "-", "--snapshot", SNAPSHOT, columns=999, text=text)
    assert "rdma/hca: 1, which no pool of this node has" in done.stdout
    assert "door = resource" in done.stdout


def test_a_number_of_thousands_of_digits_is_no_reason_to_fail() -> None:
    text = pod(
        f"resources: {{limits: {{nvidia.com/gpu: '{'9' * 5000}'}}}}", annotations=f'{{{PREFIX}: "{{perGPU: 1}}"}}'
    )
    done = nri_rdma("explain", "-", "--snapshot", SNAPSHOT, text=text)
    assert (done.returncode, "DEVICES-EXHAUSTED" in done.stdout) == (1, True)


def test_the_programs_own_name_begins_a_sentence_as_it_is_written() -> None:
    text = pod(labels=f'{{{PREFIX}/pod: "1"}}', annotations="{}")
    assert (
        "\nnri-rdma reads annotations, and no labels"
        in nri_rdma("explain", "-", "--snapshot", SNAPSHOT, text=text).stdout
    )
