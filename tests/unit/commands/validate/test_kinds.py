"""Manifests of the kinds that run distributed jobs, as their projects write them, are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode
from nri_rdma.text.manifest import read_pods
from nri_rdma.text.placed_yaml import Placed, read_documents
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.commands.validate.checking import PREFIX, checked

MANIFESTS = Path(__file__).parent / "manifests"
OURS = "no parameters for the driver rdma.noderesource.dev, not read"
NO_POD = "no pod template in it, not read"
TOLD: dict[str, tuple[int, tuple[str, ...]]] = {
    "argo-workflow": (1, ()),
    "claim": (1, ()),
    "configmap": (0, (f"kind ConfigMap: {NO_POD}",)),
    "crd": (0, (f"kind CustomResourceDefinition: {NO_POD}",)),
    "dynamographdeployment": (1, ()),
    "foreign-claim": (0, (f"kind DeviceClass: {OURS}", f"kind ResourceClaimTemplate: {OURS}")),
    "inferenceservice": (1, ()),
    "jobset": (1, ()),
    "knative-service": (1, ()),
    "kueue-workload": (1, ()),
    "leaderworkerset": (1, ()),
    "llm-deployment": (1, ()),
    "mpijob": (1, ()),
    "pytorchjob": (1, ()),
    "ray-shared-device": (1, ()),
    "raycluster": (1, ()),
    "rollout": (1, ()),
    "service": (0, (f"kind Service: {NO_POD}",)),
    "service-and-pod": (1, (f"kind Service: {NO_POD}",)),
    "sparkapplication": (1, ()),
    "sriov-pod": (1, (f"kind NetworkAttachmentDefinition: {NO_POD}",)),
    "sriov-policy": (0, (f"kind SriovNetworkNodePolicy: {NO_POD}",)),
    "trainingruntime": (1, ()),
    "trainjob": (1, ()),
    "volcano-job": (1, ()),
}
"""Of each manifest: how many of its documents are checked, and the sentences about the others."""
TYPOS = {"{count": "{cuont", "{mode: exclusive, interface": "{mdoe: exclusive, interface"}
PODS = {
    "jobset": ["default/train-driver", "default/train-workers"],
    "kueue-workload": ["default/job-train-main"],
    "leaderworkerset": ["default/vllm-leader", "default/vllm-worker"],
    "knative-service": ["default/serve"],
    "llm-deployment": ["serving/llm"],
    "mpijob": ["default/allreduce-launcher", "default/allreduce-worker"],
    "pytorchjob": ["ml/llama-master", "ml/llama-worker"],
    "ray-shared-device": ["default/shared-head", "default/shared-gpus-worker"],
    "raycluster": ["default/ray-head", "default/ray-gpus-worker"],
    "rollout": ["default/inference"],
    "service-and-pod": ["default/trainer"],
    "sriov-pod": ["default/vf"],
    "trainingruntime": ["default/torch-distributed-node"],
    "trainjob": ["default/finetune-0"],
    "volcano-job": ["default/horovod-master", "default/horovod-worker"],
}
ASKED = "{count: 2}"


def _text(name: str) -> str:
    return (MANIFESTS / f"{name}.yaml").read_text()


def test_every_manifest_has_a_row() -> None:
    assert sorted(TOLD) == sorted(path.stem for path in MANIFESTS.glob("*.yaml"))


@pytest.mark.parametrize(("name", "told"), TOLD.items())
def test_each_manifest_is_checked_or_its_sentence_says_why_not(name: str, told: tuple[int, tuple[str, ...]]) -> None:
    count, sentences = told
    found = checked(_text(name))
    assert found.problems == ()
    assert tuple(it.skipped for it in found.documents if it.skipped) == sentences
    assert sum(not it.skipped for it in found.documents) == count


@pytest.mark.parametrize("name", PODS)
def test_its_pods_are_found(name: str) -> None:
    documents = [it.value for it in read_documents(_text(name).encode()) if isinstance(it, Placed)]
    pods = [pod for document in documents for pod in read_pods(document, "FILE")]
    assert [str(pod) for pod in pods] == PODS[name]
    asked = [pod.annotations.get(f"{PREFIX}/pod") or pod.annotations.get(f"{PREFIX}/container.server") for pod in pods]
    assert asked == [*[None] * (len(pods) - 1), ASKED]


@pytest.mark.parametrize("name", [name for name, (count, _) in TOLD.items() if count])
def test_what_is_wrong_in_its_annotation_is_told_at_its_place(name: str) -> None:
    text = _text(name)
    (typo,) = (it for it in TYPOS.items() if it[0] in text)
    text = text.replace(*typo)
    (problem,) = checked(text).problems
    assert problem.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert text.splitlines()[problem.line - 1][problem.column - 1 :].startswith(("cuont", "mdoe"))


@pytest.mark.parametrize("name", sorted(PODS.keys() - {"service-and-pod", "sriov-pod"}))
def test_an_annotation_of_the_object_itself_is_told(name: str) -> None:
    ours = f'annotations: {{{PREFIX}/pod: "1"}}, name: '
    (problem,) = checked(_text(name).replace("name: ", ours, 1)).problems
    assert problem.code is ErrorCode.ANNOTATION_PLACE
    assert problem.hint.startswith("move it to spec.")


def test_an_annotation_of_a_job_between_the_object_and_its_pods_is_told() -> None:
    ours = f'    template:\n      metadata: {{annotations: {{{PREFIX}/pod: "1"}}}}\n'
    (problem,) = checked(_text("jobset").replace("    template:\n", ours, 1)).problems
    assert (problem.code, problem.line) == (ErrorCode.ANNOTATION_PLACE, 9)
    assert problem.hint == "move it to spec.replicatedJobs[0].template.spec.template.metadata.annotations"


def test_a_container_that_a_pod_of_any_kind_does_not_have_is_told() -> None:
    (problem,) = checked(_text("mpijob").replace(ASKED, "{containers: [launcher]}")).problems
    assert problem.what == "the pod has no container 'launcher'"


@pytest.mark.parametrize("key", ["podMetadata: {annotations", "podAnnotations", "annotations"])
def test_annotations_without_a_pod_beside_them_are_checked(key: str) -> None:
    end = "}" if "{" in key else ""
    text = f'kind: Other\nmetadata: {{name: a}}\nspec:\n  {key}: {{{PREFIX}/pod: "{{cuont: 2}}"}}{end}\n'
    (problem,) = checked(text).problems
    assert (problem.code, problem.line) == (ErrorCode.ANNOTATION_UNKNOWN_KEY, 4)
    assert text.splitlines()[3][problem.column - 1 :].startswith("cuont")


def test_a_kind_without_a_pod_is_said_not_to_be_read(eight: Path, tmp_path: Path) -> None:
    where = ("--sysfs-root", eight, "--state-dir", tmp_path)
    done = nri_rdma("explain", MANIFESTS / "service-and-pod.yaml", *where, columns=200)
    assert done.returncode == 0, done.stderr
    assert "Skipped: kind Service: no pod template in it, not read." in done.stdout.splitlines()
    assert "Pod default/trainer: gets 2 devices" in done.stdout.splitlines()
    error = assert_one_error(nri_rdma("explain", MANIFESTS / "service.yaml", *where), "SETTING", 2)
    assert "there is no pod in the manifest: kind Service: no pod template in it, not read, " in error
