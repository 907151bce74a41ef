"""The driver of claims of a daemon, wired."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

from nri_rdma.attach.timers import start_timer
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.device_plugins import hook_options
from nri_rdma.doors.dra.door import ClaimsDoor
from nri_rdma.doors.dra.preparing import Preparer
from nri_rdma.doors.dra.publishing import Publisher
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.doors.dra.server import DraServer
from nri_rdma.doors.dra.specs import SpecStyle
from nri_rdma.engine.claim_states import ClaimStates
from nri_rdma.engine.claims import Claims
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.host.netlink.namespace import read_boot_id
from nri_rdma.model.pool import PoolDoor
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.workers import Workers


def make_claims_door(settings: Settings, engine: Engine, workers: Workers, spans: Recorder) -> ClaimsDoor | None:
    """Return the driver for the pools with door = claims, None where there is none; whoever makes it closes it."""
    if not any(pool.door is PoolDoor.CLAIMS for pool in settings.pools):
        return None
    claims, api = Claims(engine), ApiServer(settings.kubeconfig)
    cache = engine.placer.node.cache
    folder = settings.cdi_dirs[-1]
    boot, states = read_boot_id(), ClaimStates(engine)
    statuses = StatusWriter(api, states.now, folder)
    states.on_news.append(statuses.news)
    preparer = Preparer(
        api.get,
        claims,
        folder=folder,
        style=lambda: _style(settings, boot),
        statuses=statuses,
        expect=engine.placer.evidence.specs.expect,
        spans=spans,
    )
    node = settings.node_name or socket.gethostname().lower()
    publisher = Publisher(api, node, claims.advertise)
    server = DraServer(settings.kubelet_plugins_dir, preparer, publisher.start, spans)
    door = ClaimsDoor(
        server,
        publisher,
        statuses,
        api,
        workers=workers,
        schedule=start_timer,
        look_at_node=cache.look_for_unannounced,
        withheld=claims.withheld,
    )
    cache.on_read.append(door.node_was_read)
    return door


def missing_package(settings: Settings) -> tuple[Trouble, ...]:
    """Return which pools are asked through claims without what asks the API server."""
    names = ", ".join(pool.name for pool in settings.pools if pool.door is PoolDoor.CLAIMS)
    if not names or find_spec("kubernetes") is not None:
        return ()
    error = SettingError(
        ErrorCode.SETTING,
        f'no claim can be prepared for pool {names} (door = "claims"), because kubernetes is not installed',
        hint="install nri-rdma with its extra `claims`, as docs/claims.md says, and restart the daemon",
    )
    return (Trouble(part=Part.CLAIMS, why=str(error)),)


def _style(settings: Settings, boot: str) -> SpecStyle:
    hook = settings.guard_hook
    return SpecStyle(
        prefix=settings.annotation_prefix,
        hook=hook if hook is not None and hook.is_file() else None,
        options=tuple(hook_options(settings)),
        boot=boot,
        has_numbers=settings.dev_root != Path("/dev"),
    )
