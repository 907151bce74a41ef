"""A fake kubelet's device manager: registration and calls of device plugins v1beta1 over real gRPC, with protobuf that
is written by hand (tests/rig/kubelet.py says why).

As the real one (Kubernetes 1.37) it removes all sockets of its folder when it starts, dials back after Register, asks
for the options although they were sent, and keeps ListAndWatch open.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: grpc has no types

import grpc

from tests.rig.dial import dial
from tests.rig.kubelet import fields, message, number_in, text, whole

_EMPTY = b""
_NODES, _ANNOTATIONS, _CDI_DEVICES = 3, 4, 5
"""Fields of ContainerAllocateResponse."""


@dataclass
class Registered:
    """A plugin that has registered: its channel, its options, and the last list that it sent (health by id)."""

    endpoint: str
    channel: Any
    devices: dict[str, str] = field(default_factory=dict)
    numa_nodes: dict[str, frozenset[int]] = field(default_factory=dict)
    """By id: the topology, by which the real one's Topology Manager aligns."""
    lists: int = 0
    prefers: bool = False
    """Whether the plugin wants to be asked which ids go well together."""
    is_over: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """What a container was allocated: the ids, and what comes with them (the nodes by their paths on the host)."""

    ids: tuple[str, ...]
    nodes: tuple[str, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]


class FakeDeviceManager:
    """Serves kubelet.sock in `folder` between start and stop. `plugins` are those that have registered, by resource."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Any = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._dialed: list[Registered] = []
        """Those of which a thread takes the lists, also before the first one has come."""
        self.plugins: dict[str, Registered] = {}
        self.registrations: list[dict[int, bytes]] = []
        """The fields of each Register, by number."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Remove all sockets and serve."""
        self._is_stopped = False
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            path.unlink()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        methods = {"Register": grpc.unary_unary_rpc_method_handler(self._register)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", methods),))
        self._server.add_insecure_port(f"unix:{self._folder}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        """End: the socket goes, and so do the connections to the plugins. None registers after that."""
        self._server.stop(grace=None).wait()
        with self._lock:
            self._is_stopped = True
            registered = list(self._dialed)
            self._dialed.clear()
        for plugin in registered:
            plugin.channel.close()
            plugin.is_over.wait()
        self.plugins.clear()

    def call(self, resource: str, method: str, request: bytes) -> bytes:
        """Call a method of the plugin of that resource. Raises grpc.RpcError."""
        channel = self.plugins[resource].channel
        answer: bytes = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=5)
        return answer

    def allocate(self, resource: str, *containers: tuple[str, ...]) -> list[list[tuple[int, bytes]]]:
        """Allocate ids for containers; the fields of the answer of each."""
        request = b"".join(message(1, b"".join(text(1, share) for share in ids)) for ids in containers)
        answer = self.call(resource, "Allocate", request)
        return [list(fields(content)) for _number, content in fields(answer)]

    def prefer(self, resource: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Ask which of the available ids a container of `size` shall get, as the real one does before it allocates."""
        assert self.plugins[resource].prefers, "the real one does not ask a plugin whose options do not say so"
        ids = b"".join(text(1, it) for it in available) + b"".join(text(2, it) for it in must)
        answer = self.call(resource, "GetPreferredAllocation", message(1, ids + whole(3, size)))
        ((_number, content),) = fields(answer)
        return [it.decode() for _number, it in fields(content)]

    def admit(
        self, resource: str, size: int, numa_nodes: frozenset[int] = frozenset(), free: Collection[str] = ()
    ) -> Admitted:
        """Allocate as the real one does for a container whose Topology Manager has chosen these NUMA nodes (none: it
        does not align): of the healthy ids that are free (none: all), those on them if they are enough."""
        plugin = self.plugins[resource]
        healthy = [it for it, health in plugin.devices.items() if health == "Healthy" and (not free or it in free)]
        aligned = [it for it in healthy if not numa_nodes or plugin.numa_nodes[it] & numa_nodes]
        chosen = aligned if len(aligned) >= size else healthy
        ids = self.prefer(resource, tuple(chosen), (), size) if plugin.prefers else chosen[:size]
        return self.give(resource, *ids)

    def give(self, resource: str, *ids: str) -> Admitted:
        """Allocate these ids for a container, whatever the plugin prefers."""
        (answer,) = self.allocate(resource, ids)
        annotations = (dict(fields(content)) for number, content in answer if number == _ANNOTATIONS)
        return Admitted(
            ids=ids,
            nodes=tuple(dict(fields(content))[2].decode() for number, content in answer if number == _NODES),
            annotations={it[1].decode(): it[2].decode() for it in annotations},
            cdi_devices=tuple(
                dict(fields(content))[1].decode() for number, content in answer if number == _CDI_DEVICES
            ),
        )

    def _register(self, request: bytes, _context: Any) -> bytes:
        told = dict(fields(request))
        self.registrations.append(told)
        endpoint, resource = told[2].decode(), told[3].decode()
        with self._lock:
            if not self._is_stopped:  # the call is answered by a thread that may still run after the server's end
                channel = dial(self._folder / endpoint)
                plugin = Registered(endpoint=endpoint, channel=channel)
                self._dialed.append(plugin)
                threading.Thread(target=self._follow, args=(resource, plugin), daemon=True).start()
        return _EMPTY

    def _follow(self, resource: str, plugin: Registered) -> None:
        """Ask for the options and take each list, until the plugin or the kubelet ends."""
        try:
            options = plugin.channel.unary_unary("/v1beta1.DevicePlugin/GetDevicePluginOptions")(_EMPTY, timeout=5)
            plugin.prefers = options == whole(2, 1)
            for answer in plugin.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(_EMPTY):
                devices = [dict(fields(content)) for _number, content in fields(answer)]
                plugin.lists += 1  # first: whoever sees the new devices also sees the new count
                plugin.numa_nodes = {device[1].decode(): _numa_nodes(device.get(3, b"")) for device in devices}
                plugin.devices = {device[1].decode(): device[2].decode() for device in devices}
                self.plugins[resource] = plugin
        except (grpc.RpcError, ValueError):  # the plugin has ended; or our channel was closed (ValueError)
            pass
        finally:
            plugin.is_over.set()


def _numa_nodes(topology: bytes) -> frozenset[int]:
    """The NUMA nodes of a TopologyInfo. Number 0 is not written."""
    return frozenset(number_in(node) for _number, node in fields(topology))
