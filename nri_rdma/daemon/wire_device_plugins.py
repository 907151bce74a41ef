"""Creates the device plugins of a daemon, and writes the CDI spec that adds the guard to containers with shares. The
guard is an OCI hook that keeps a container from starting without its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from nri_rdma.attach.holdings import held_by_id
from nri_rdma.attach.timers import start_timer
from nri_rdma.cdi.names import file_name
from nri_rdma.config.settings import Settings
from nri_rdma.doors.deviceplugin.answers import Supply
from nri_rdma.doors.deviceplugin.guarded import KIND, guarded
from nri_rdma.doors.deviceplugin.plugins import DevicePlugins
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.shares import Guarding, ShareBook
from nri_rdma.host.cdi.write import write_own_spec
from nri_rdma.host.containerd.cdi_setting import reads_cdi_specs
from nri_rdma.host.containerd.containerd_api import ContainerdError
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.kubelet_checkpoint import FILE as CHECKPOINT_FILE

_CONTAINERD = "containerd"


def make_device_plugins(
    settings: Settings,
    engine: Engine,
    workers: Workers,
    listeners: Listeners,
    runtime: Callable[[], str],
    spans: Recorder,
) -> DevicePlugins:
    """Return the device plugins for the pools of these settings. The caller closes them. `runtime` returns the name of
    the connected container runtime."""
    shares = engine.kubelet.shares
    plugins = DevicePlugins(
        settings.device_plugin_dir,
        partial(_supply, engine),
        shares,
        guard=partial(_write_guard, settings, shares, runtime),
        workers=workers,
        listeners=listeners,
        schedule=start_timer,
        spans=spans,
    )
    plugins.on_look.append(engine.node.look_for_unannounced)
    engine.node.on_read.append(plugins.node_was_read)
    return plugins


def _supply(engine: Engine) -> Supply:
    return Supply(
        node=engine.node.current,
        offer=engine.offering.offer,
        taken=engine.reservations.taken,
        held=lambda pool: held_by_id(engine.attachments.all(), pool),
        is_guarded=engine.kubelet.shares.is_guarded,
    )


def _write_guard(settings: Settings, shares: ShareBook, runtime: Callable[[], str]) -> Guarding:
    """Write the CDI spec by which containers with shares get the guard, an OCI hook that keeps a container from
    starting without its devices. Return a reason instead if this host has no hook, or if the runtime, named by
    `runtime`, does not read CDI specs. The file stays after the daemon's end. Raises CdiError, and OSError if
    containerd does not answer."""
    hook = settings.guard_hook
    if hook is None or not hook.is_file():
        return Guarding.NO_HOOK
    if runtime() == _CONTAINERD and not _reads_cdi_specs(settings):
        return Guarding.NO_CDI
    spec = guarded(shares.served, hook, tuple(hook_options(settings)))
    write_own_spec(spec, settings.cdi_dirs[-1], file_name(KIND))
    return Guarding.ON


def _reads_cdi_specs(settings: Settings) -> bool:
    """Return whether containerd reads CDI specs; True if its answer does not say so. Raises OSError if containerd does
    not answer."""
    try:
        return reads_cdi_specs(settings.containerd_socket) is not False
    except ContainerdError as error:
        raise OSError(f"containerd does not say whether it reads CDI specs: {error}") from error


def hook_options(settings: Settings) -> Iterator[str]:
    """Yield the command-line flags of the guard, an OCI hook that keeps a container from starting without its devices.
    There is a flag for each setting that differs from the hook's default."""
    plain = Settings()
    if settings.control_path != plain.control_path:
        yield from ("--control-socket", str(settings.control_path))
    if settings.annotation_prefix != plain.annotation_prefix:
        yield from ("--annotation-prefix", settings.annotation_prefix)
    if settings.kubelet_plugins_dir != plain.kubelet_plugins_dir:
        yield from ("--kubelet-checkpoint", str(settings.kubelet_plugins_dir.parent / CHECKPOINT_FILE))
