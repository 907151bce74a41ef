"""What is gathered from a running daemon gives the daemon's own decisions."""

from dataclasses import replace

from nri_rdma.commands.explain.explanation import explain
from nri_rdma.commands.explain.gather import gather
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import of_edits, of_explained

PREFIX = "rdma.noderesource.dev"


def test_a_running_pod_is_explained_as_if_it_started_anew(daemon: InsideDaemon) -> None:
    annotations = {PREFIX: "[{match: {device: mlx5_2}}]"}
    pod = daemon.start_pod("one", annotations)
    manifest = PodManifest(
        kind="Pod",
        namespace="default",
        name="one",
        annotations=annotations,
        containers=(ContainerManifest(name="a"),),
    )
    explanation = explain(manifest, gather(daemon.settings).facts)
    assert explanation.holds == ("mlx5_2",)
    assert of_explained(explanation.containers[0]) == of_edits(daemon.edits(pod, annotations, "a"))
    assert explain(replace(manifest, name="two"), gather(daemon.settings).facts).refusal is not None
