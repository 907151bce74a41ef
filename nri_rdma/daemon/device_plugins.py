"""The device plugins of a daemon, wired: what they offer is what its engine offers."""

from __future__ import annotations

from nri_rdma.attach.timers import start_timer
from nri_rdma.config.settings import Settings
from nri_rdma.doors.deviceplugin.plugins import DevicePlugins
from nri_rdma.engine.engine import Engine
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers


def make_device_plugins(settings: Settings, engine: Engine, workers: Workers, listeners: Listeners) -> DevicePlugins:
    """Return the device plugins for the pools of these settings; whoever makes them closes them."""
    placer = engine.placer
    plugins = DevicePlugins(
        settings.device_plugin_dir,
        settings.pools,
        lambda: placer.offering.offer,
        placer.evidence.kubelet.shares,
        workers=workers,
        listeners=listeners,
        schedule=start_timer,
    )
    placer.node.cache.on_read.append(plugins.node_was_read)
    return plugins
