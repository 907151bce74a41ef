"""The list of all checks. A check comes after the checks on whose results it depends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nri_rdma.commands.doctor import (
    daemon_container,
    docker_setup,
    engines,
    gpudirect,
    guard,
    hardware,
    hooks,
    image,
    kernel,
    mounts,
    podman_setup,
    rails,
    runtime,
    service,
    software,
)
from nri_rdma.commands.doctor.finding import Finding
from nri_rdma.commands.doctor.machine import Machine

Check: TypeAlias = Callable[[Machine], Finding]

CHECKS: tuple[Check, ...] = (
    software.python,
    software.packages,
    software.configuration,
    kernel.release,
    kernel.privileges,
    kernel.sysctls,
    daemon_container.host_network,
    kernel.rdma_netns,
    kernel.rdma_cgroup,
    hardware.devices,
    hardware.device_nodes,
    rails.guids,
    rails.roce_v2,
    rails.equal_rails,
    hardware.pools,
    hardware.share_limits,
    gpudirect.gpudirect,
    runtime.nri_socket,
    runtime.runtime,
    runtime.containerd_socket,
    runtime.cdi_specs,
    runtime.memlock,
    mounts.mounts,
    daemon_container.cdi_folder,
    daemon_container.device_plugins,
    daemon_container.claims,
    daemon_container.pod_resources,
    service.daemon,
    guard.guard,
    guard.limits,
    service.state,
    service.cdi,
    hooks.hooks,
    podman_setup.podman,
    docker_setup.docker,
    engines.others,
    service.links,
)


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Run all checks and return their findings. The checks change nothing on the machine."""
    checks = CHECKS if machine.image_root is None else (*CHECKS, image.libraries)
    return tuple(check(machine) for check in checks)
