"""Reads the flag `--cdi-device` of `explain`, which names a CDI device of a container, and looks the device up in the
CDI specs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nri_rdma.cdi.grants import CdiGrant, Origin, grants_of
from nri_rdma.cdi.index import Index
from nri_rdma.cdi.names import parse_qualified
from nri_rdma.cdi.registry import Registry
from nri_rdma.commands.explain.gather import FactsSource
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.host.cdi.folder import read_registry
from nri_rdma.text.manifest import PodManifest


def with_cdi_devices(
    source: FactsSource, told: tuple[str, ...], directories: tuple[Path, ...], pods: tuple[PodManifest, ...]
) -> FactsSource:
    """Return the facts with the CDI devices that the flags name. `told` are the values of --cdi-device
    (``CONTAINER=VENDOR/CLASS=NAME``).

    Raises SettingError if a value has another form, or names a container or CDI device that does not exist.
    """
    return with_registry(source, told, read_registry(directories), ", ".join(map(str, directories)), pods)


def with_registry(
    source: FactsSource, told: tuple[str, ...], registry: Registry, where: str, pods: tuple[PodManifest, ...]
) -> FactsSource:
    """Return the input of `explain` with the CDI devices that the flags name, looked up in CDI specs that were already
    read. `told` are the values of --cdi-device.

    `where` names the folders of the specs, for errors. Raises SettingError if a value has another form, or names a
    container or CDI device that does not exist.
    """
    index = Index(registry, source.facts.node, source.facts.annotation_prefix)
    containers = {container.name for pod in pods for container in pod.containers}
    grants: list[CdiGrant] = []
    present: dict[str, Mapping[str, tuple[int, int]]] = {}
    for text in told:
        container, _, name = text.partition("=")
        if parse_qualified(name) is None:
            raise _refused(text, "it is not CONTAINER=VENDOR/CLASS=NAME", "write trainer=dra.example.com/nic=claim-7f3")
        if container not in containers:
            raise _refused(text, f"no pod has a container {container}", f"there are {', '.join(sorted(containers))}")
        if name not in registry.devices:
            raise _refused(text, f"no spec in {where} has the CDI device {name}", "see `nri-rdma cdi list`")
        grants += grants_of(index, container, {name: Origin.RUNTIME})
        present[container] = {**present.get(container, {}), **index.nodes(name)}
    return replace(source, facts=replace(source.facts, grants=tuple(grants), present=present))


def _refused(text: str, what: str, hint: str) -> SettingError:
    return SettingError(ErrorCode.SETTING, what, where=f"--cdi-device {text}", hint=hint)
