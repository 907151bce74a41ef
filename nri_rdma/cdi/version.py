"""Finds the CDI version that a spec needs.

A runtime refuses a spec with an unknown version, and a spec that uses more than its declared version allows. nri-rdma
therefore writes the lowest version that a spec's content needs, so that a containerd of 2023 can read the spec, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nri_rdma.cdi.spec import Edits, Spec, Version
from nri_rdma.text.nodes import Path

VERSIONS = tuple(Version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A part of a spec that needs at least this version of CDI. `what` names it, and `path` leads to it in the spec."""

    version: Version
    what: str
    path: Path


def is_older(version: Version, other: Version) -> bool:
    """Return whether `version` was released before `other`."""
    return VERSIONS.index(version) < VERSIONS.index(other)


def minimum_version(spec: Spec) -> Version:
    """Return the lowest version that has everything the spec uses. The version that the spec declares has no
    influence."""
    return max((item.version for item in needs(spec)), key=VERSIONS.index, default=VERSIONS[0])


def needs(spec: Spec) -> Iterator[Needed]:
    """Yield every part of the spec that was introduced after version 0.3.0."""
    for version, what, find in _FEATURES:
        for path in find(spec):
            yield Needed(version=version, what=what, path=path)


def _edits(spec: Spec) -> Iterator[tuple[Path, Edits]]:
    yield ("containerEdits",), spec.edits
    for number, device in enumerate(spec.devices):
        yield ("devices", number, "containerEdits"), device.edits


def _net_devices(spec: Spec) -> Iterator[Path]:
    return ((*path, "netDevices") for path, edits in _edits(spec) if edits.net_devices)


def _schemata(spec: Spec) -> Iterator[Path]:
    for path, edits in _edits(spec):
        if edits.intel_rdt is not None and edits.intel_rdt.schemata is not None:
            yield (*path, "intelRdt", "schemata")


def _monitoring(spec: Spec) -> Iterator[Path]:
    for path, edits in _edits(spec):
        if edits.intel_rdt is not None and edits.intel_rdt.enable_monitoring:
            yield (*path, "intelRdt", "enableMonitoring")


def _intel_rdt(spec: Spec) -> Iterator[Path]:
    return ((*path, "intelRdt") for path, edits in _edits(spec) if edits.intel_rdt is not None)


def _additional_gids(spec: Spec) -> Iterator[Path]:
    return ((*path, "additionalGids") for path, edits in _edits(spec) if edits.additional_gids)


def _annotations(spec: Spec) -> Iterator[Path]:
    if spec.annotations:
        yield ("annotations",)
    yield from (("devices", number, "annotations") for number, it in enumerate(spec.devices) if it.annotations)


def _dotted_class(spec: Spec) -> Iterator[Path]:
    if "." in spec.kind.device_class:
        yield ("kind",)


def _leading_digit(spec: Spec) -> Iterator[Path]:
    return (("devices", number, "name") for number, it in enumerate(spec.devices) if it.name[:1].isdigit())


def _host_path(spec: Spec) -> Iterator[Path]:
    for path, edits in _edits(spec):
        for number, node in enumerate(edits.device_nodes):
            if node.host_path:
                yield (*path, "deviceNodes", number, "hostPath")


def _mount_type(spec: Spec) -> Iterator[Path]:
    for path, edits in _edits(spec):
        for number, mount in enumerate(edits.mounts):
            if mount.type:
                yield (*path, "mounts", number, "type")


_FEATURES: tuple[tuple[Version, str, Callable[[Spec], Iterator[Path]]], ...] = (
    (Version.V1_1_0, "netDevices", _net_devices),
    (Version.V1_1_0, "schemata", _schemata),
    (Version.V1_1_0, "enableMonitoring", _monitoring),
    (Version.V0_7_0, "intelRdt", _intel_rdt),
    (Version.V0_7_0, "additionalGids", _additional_gids),
    (Version.V0_6_0, "annotations", _annotations),
    (Version.V0_6_0, "a class with a dot", _dotted_class),
    (Version.V0_5_0, "a device name that begins with a digit", _leading_digit),
    (Version.V0_5_0, "hostPath", _host_path),
    (Version.V0_4_0, "the type of a mount", _mount_type),
)
"""The features by version, from "Released versions" in CDI's SPEC.md; 0.8.0 and 1.0.0 did not change the schema."""
