"""The present device names and character device numbers of an attach, and the netdevs that were in the pod before the
attach.

The kernel creates character devices anew when an RDMA device changes its namespace, and a pod with NET_ADMIN can rename
its devices. So names and numbers are read at the end of an attach, and again when the kernel reports a change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from nri_rdma.attach.numbers import Resolve, Resolved, with_char_devices, with_names, with_netdev_names
from nri_rdma.attach.port import Kernel, KernelError, Namespace, explained
from nri_rdma.attach.rdma import netdevs_in_pod, with_numbers_in_pod
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.return_netdev import look_in_pod
from nri_rdma.errors import AttachError
from nri_rdma.model.device import RdmaDevice


class Presence:
    """Reads the present names of devices and the numbers of character devices. Devices that moved are read over netlink
    in the pod, the others through `resolve` on the host.

    Blocks on the kernel, so only workers may call it. Raises AttachError, and PlacementError if a netdev belongs to
    another pod.
    """

    def __init__(self, kernel: Kernel, resolve: Resolve) -> None:
        self._kernel = kernel
        self._resolve = resolve

    def refuse_elsewhere(self, record: SandboxRecord, namespace: Namespace | None) -> None:
        """Raise PlacementError if a requested device has its netdev in another pod. Called before anything moves.
        Devices that will move are not checked, because the pod does not show them yet."""
        moved = {move.index for move in record.plan.rdma_moves}

        def in_pod(device: RdmaDevice) -> tuple[str, ...]:
            return () if device.kernel_index in moved else self._netdev_names(record, namespace, device)

        with_netdev_names(record, in_pod)

    def at_the_end(self, record: SandboxRecord, namespace: Namespace | None) -> SandboxRecord:
        """Return the record of an attach whose steps are done, completed with the device names and numbers for its
        containers. Raises AttachError if a netdev has left the pod meanwhile: a pod must not start without a device
        that it requested."""
        self._refuse_lost(record, namespace)
        numbered = with_char_devices(record, lambda known: self._char_devices(record, namespace, known))
        return with_netdev_names(numbered, lambda device: self._netdev_names(record, namespace, device))

    def again(self, record: SandboxRecord, namespace: Namespace | None) -> SandboxRecord:
        """Return the record of an attached sandbox with the present names of its RDMA devices and the present numbers
        of their character devices."""
        named = with_names(record, self._names(record, namespace))
        return with_char_devices(named, lambda known: self._char_devices(named, namespace, known))

    def _refuse_lost(self, record: SandboxRecord, namespace: Namespace | None) -> None:
        if namespace is None:
            return
        with _told_as(record, record.device_names):
            lost = [move for move in record.plan.moves if look_in_pod(self._kernel, namespace, move) is None]
        for move in lost:
            raise AttachError(
                f"netdev {move.link.name} ({move.pod_name} in the pod) is no longer in the pod",
                device=move.device,
                where=str(record.pod),
                hint="find out which program deletes or moves it",
            )

    def _names(self, record: SandboxRecord, namespace: Namespace | None) -> dict[int, str]:
        """Return the present names of RDMA devices by kernel index, read on the host and, if RDMA devices moved, in the
        pod."""
        places = [self._kernel.host, *([namespace] if namespace is not None and record.plan.rdma_moves else [])]
        with _told_as(record, record.device_names):
            return {state.index: state.name for place in places for state in self._kernel.rdma_devices(place)}

    def _char_devices(self, record: SandboxRecord, namespace: Namespace | None, known: Resolved) -> Resolved:
        moved = {move.index for move in record.plan.rdma_moves}
        staying = tuple(device for device in known.devices if device.kernel_index not in moved)
        there = tuple(
            self._in_pod(record, namespace, device, device.kernel_index)
            for device in known.devices
            if device.kernel_index is not None and device.kernel_index in moved
        )
        found = self._resolve(replace(known, devices=staying))
        return replace(found, devices=(*found.devices, *there))

    def _in_pod(self, record: SandboxRecord, namespace: Namespace | None, device: RdmaDevice, index: int) -> RdmaDevice:
        assert namespace is not None  # the device moved into it
        with _told_as(record, device.name):
            return with_numbers_in_pod(self._kernel, namespace, device, index)

    def _netdev_names(self, record: SandboxRecord, namespace: Namespace | None, device: RdmaDevice) -> tuple[str, ...]:
        assert namespace is not None  # needs_namespace is true for a device that lacks its netdev
        with _told_as(record, device.name):
            return netdevs_in_pod(self._kernel, namespace, device)


@contextmanager
def _told_as(record: SandboxRecord, device: str) -> Iterator[None]:
    """Turn a KernelError inside the `with` block into an AttachError that names the device and the pod."""
    try:
        yield
    except KernelError as error:
        raise explained(error, device=device, where=str(record.pod), path=record.pod.netns_path) from error
