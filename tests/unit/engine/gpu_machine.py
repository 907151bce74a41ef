"""The node "eight" with a daemon and a kubelet that knows of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.cdi.registry import Registry
from nri_rdma.errors import NriRdmaError
from nri_rdma.observe.spans import AttributeValue
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.rig.node import load
from tests.unit.rigs.engine_with_kubelet import Kubelet
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import Got, Handlers

KEY = "rdma.noderesource.dev/pod"
GPUS = load("eight").gpus
STRICT = "{align: {to: gpu, strict: true}}"
PRIVILEGED = "privileged"


class Machine:
    """The node "eight" with a daemon and a kubelet."""

    def __init__(self, inside: InsideDaemon) -> None:
        self.inside = inside
        self.kubelet = Kubelet()
        inside.engine.kubelet.kubelet = self.kubelet
        self._handlers = Handlers(inside)

    def give(self, name: str, container: str, *numbers: int) -> None:
        """GPUs of the device plugin, by their place in PCI order."""
        self.kubelet.give_ids(f"default/{name}", container, "nvidia.com/gpu", *(GPUS[it].uuid for it in numbers))

    def run(self, name: str, asked: str) -> list[str]:
        """The devices that such a pod gets."""
        self.start(name, asked)
        return [device for device, holders in self._held() if f"default/{name}" in holders]

    def start(self, name: str, asked: str) -> nri.PodSandbox:
        """A pod that runs."""
        return self._handlers.run_pod(manifest_of(name, asked))

    def create(self, pod: nri.PodSandbox, *numbers: int, env: tuple[str, ...] = (), container: str = "main") -> Got:
        """A container of it with the device files of these GPUs."""
        nodes = {f"/dev/nvidia{number}": (195, number) for number in numbers}
        manifest = ContainerManifest(name=container, privileged=container == PRIVILEGED)
        return self._handlers.create(pod, manifest, nodes=nodes, env=env)

    def specify(self, registry: Registry) -> None:
        """The node has these CDI specs."""
        specs = self.inside.engine.specs
        specs._registry = lambda: registry
        specs.read_again()

    def stop(self, pod: nri.PodSandbox) -> None:
        """The end of a pod."""
        self._handlers.stop_pod(pod)

    def refusal(self, name: str, asked: str) -> NriRdmaError:
        with pytest.raises(NriRdmaError) as caught:
            self.run(name, asked)
        return caught.value

    def span(self, name: str = "kubelet") -> dict[str, AttributeValue]:
        """What the last span of that name says."""
        return next(span.attributes for span in reversed(self.inside.spans.recent()) if span.name == name)

    def _held(self) -> Iterator[tuple[str, set[str]]]:
        taken = self.inside.reservations.taken()
        for device in self.inside.node.devices:
            yield device.name, {holding.owner for holding in taken.get(device.id, ())}


def manifest_of(name: str, asked: str) -> PodManifest:
    containers = tuple(ContainerManifest(name=it) for it in ("main", "side"))
    return PodManifest(kind="Pod", namespace="default", name=name, annotations={KEY: asked}, containers=containers)


@pytest.fixture
def machine(tmp_path: Path, eight: Path) -> Iterator[Machine]:
    with InsideDaemon(tmp_path, eight) as inside:
        yield Machine(inside)
