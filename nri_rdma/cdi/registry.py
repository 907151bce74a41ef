"""The CDI devices of all spec directories. If several directories have a device of one name, their priorities
decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nri_rdma.cdi.spec import Device, DeviceNode, Edits, NetDevice, Spec
from nri_rdma.errors import CdiError, ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """A file with a spec. `priority` is the priority of its directory: of two devices with one name, the one with the
    higher priority counts."""

    file: str
    priority: int
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedDevice:
    """A CDI device that containers can get by its qualified name (``vendor/class=device``), with the edits that it
    makes to a container."""

    name: str
    file: str
    device: Device
    spec_edits: Edits
    """The edits of the spec, which a container gets once for all of its devices from this spec."""
    spec_annotations: tuple[tuple[str, str], ...] = ()

    def annotation(self, key: str) -> str | None:
        """Return the text under the key in the device's annotations, or else in its spec's; None if neither has the
        key."""
        own, spec = dict(self.device.annotations), dict(self.spec_annotations)
        return own.get(key, spec.get(key))

    @property
    def net_devices(self) -> tuple[NetDevice, ...]:
        """The netdevs that come with the device: the spec's, then the device's own."""
        return self.spec_edits.net_devices + self.device.edits.net_devices

    @property
    def nodes(self) -> tuple[DeviceNode, ...]:
        """All device nodes that the device brings: the spec's, then the device's own."""
        return self.spec_edits.device_nodes + self.device.edits.device_nodes

    @property
    def rdma_nodes(self) -> tuple[DeviceNode, ...]:
        """The device nodes below /dev/infiniband that the CDI device brings."""
        return tuple(node for node in self.nodes if node.is_rdma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The CDI devices of all files by qualified name, in the order of their names, and the problems of all files."""

    devices: Mapping[str, ResolvedDevice]
    problems: tuple[CdiError, ...] = ()


def resolve(files: Iterable[SpecFile], problems: tuple[CdiError, ...] = ()) -> Registry:
    """Return the devices of all files. A device hides devices with its name in directories of lower priority.

    If two files of one priority have a device of one name, the name is left out and its conflict is added to the
    problems. A further device of that name, even in a directory of higher priority, does not help: runtimes refuse the
    name, too.
    """
    found: dict[str, dict[int, list[ResolvedDevice]]] = {}
    for item in files:
        for device in item.spec.devices:
            name = item.spec.kind.qualified(device.name)
            resolved = ResolvedDevice(
                name=name,
                file=item.file,
                device=device,
                spec_edits=item.spec.edits,
                spec_annotations=item.spec.annotations,
            )
            found.setdefault(name, {}).setdefault(item.priority, []).append(resolved)
    conflicts = [same for by_priority in found.values() for same in by_priority.values() if len(same) > 1]
    unresolvable = {same[0].name for same in conflicts}
    return Registry(
        devices=MappingProxyType(
            {name: found[name][max(found[name])][0] for name in sorted(found) if name not in unresolvable}
        ),
        problems=(*problems, *map(_conflict, conflicts)),
    )


def _conflict(same: list[ResolvedDevice]) -> CdiError:
    first, *others = sorted(item.file for item in same)
    return CdiError(
        ErrorCode.CDI_CONFLICT,
        f"no container can have {same[0].name}: it is also in {' and in '.join(others)}",
        file=first,
        hint="remove it from all files of the directory but one",
    )
