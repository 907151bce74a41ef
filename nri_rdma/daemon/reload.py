"""Replaces the configuration of a running daemon.

Law: all or nothing. A configuration that is invalid, or that changes a setting which only a restart can change, changes
nothing; the log and `status` say why. Pods keep their devices, whatever the new configuration says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import groupby

from nri_rdma.config.settings import Settings
from nri_rdma.decide.policy import Policy, configured_policy, offer
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.observe.logs import set_log_level

log = logging.getLogger(__name__)

RELOADABLE = frozenset({"pools", "rules", "adopt", "allow_default_pool", "sandboxed_handlers", "log_level"})
"""The settings that can change while the daemon runs. All other settings determine its files, sockets and names."""


class Reloader:
    """Replaces the daemon's configuration. Only one thread at a time may call `run`.

    `read` returns the present settings from all sources, or raises SettingError.
    """

    def __init__(self, settings: Settings, read: Callable[[], Settings], engine: Engine) -> None:
        self._settings = settings
        self._read = read
        self._engine = engine
        self.error = ""
        """The reason why the last new configuration was refused; "" if it was accepted."""
        self.has_taken = False
        """Whether a reload has replaced the configuration of the daemon's start."""

    def run(self) -> None:
        """Read the configuration and use it. If it is invalid, keep the old one and log the reason. No content of a
        configuration file makes this raise."""
        try:
            settings = self._read()
            self._take(settings)
        except SettingError as error:
            self.error = str(error)
            log.warning("configuration refused, the old one goes on", extra={"error": self.error})
        else:
            self._settings, self.error, self.has_taken = settings, "", True
            pools = ", ".join(self._engine.offering.policy.pools)
            log.info("configuration read again", extra={"pools": pools, "rules": len(settings.rules)})

    def _take(self, settings: Settings) -> None:
        refuse_fixed(self._settings, settings)
        policy = configured_policy(settings)
        refuse_contested(policy, self._engine.node.current)
        self._engine.offering.policy = policy
        self._engine.offering.adoption = settings.adopt
        set_log_level(settings.log_level)


def refuse_fixed(old: Settings, new: Settings) -> None:
    """Raise SettingError if `new` changes settings that only a restart can change. The error names the settings."""
    changed = [
        item.name
        for item in fields(Settings)
        if item.name not in RELOADABLE and getattr(old, item.name) != getattr(new, item.name)
    ]
    changed += [
        f"pools with door = {door}"
        for door in (PoolDoor.RESOURCE, PoolDoor.CLAIMS)
        if _served_at(door, old) != _served_at(door, new)
    ]
    if changed:
        raise SettingError(
            ErrorCode.SETTING,
            f"{', '.join(changed)} cannot change while the daemon runs",
            hint="restart it, which leaves pods their devices, or take the change back",
        )


def _served_at(door: PoolDoor, settings: Settings) -> Mapping[str, Pool]:
    """Return the pools of a door, by name. The device plugins and the driver of claims are made from them at the start,
    and the kubelet and the scheduler count by what these have told."""
    return {pool.name: pool for pool in settings.pools if pool.door is door}


def refuse_contested(policy: Policy, node: Node) -> None:
    """Raise SettingError if several pools select a device of this node, since a device belongs to one pool only. The
    error names the devices."""
    contested = contested_words(policy, node)
    if contested:
        raise SettingError(
            ErrorCode.SETTING,
            f"a device is in one pool only, and {contested}",
            hint="give the pools select or exclude that take different devices",
        )


class Contested:
    """Logs contested devices, which no pod can get because several pools select them. An unchanged list is not logged
    again."""

    def __init__(self) -> None:
        self._told = ""

    def tell(self, policy: Policy, node: Node) -> None:
        """Log the contested devices of this node, which no pod can get because several pools select them. If their list
        has not changed since the last call, log nothing."""
        contested = contested_words(policy, node)
        if contested not in {"", self._told}:
            log.error("devices that several pools select are in none", extra={"contested": contested})
        self._told = contested


def contested_words(policy: Policy, node: Node) -> str:
    """Return a text that names the devices which several pools select, with these pools; "" if there are no such
    devices."""
    contested = offer(policy, node).contested
    names = {device.id: device.name for device in node.devices}
    by_pools = groupby(sorted((pools, names[device_id]) for device_id, pools in contested.items()), lambda it: it[0])
    return "; ".join(
        f"{' and '.join(pools)} both select {', '.join(name for _, name in group)}" for pools, group in by_pools
    )
