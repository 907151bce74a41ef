"""Creates the DRA driver of a daemon."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: JSON

from nri_rdma.attach.timers import start_timer
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.wire_device_plugins import hook_options
from nri_rdma.doors.dra.claim_specs import SpecStyle
from nri_rdma.doors.dra.claims_door import ClaimsDoor
from nri_rdma.doors.dra.dra_server import DraServer
from nri_rdma.doors.dra.preparing import Preparer
from nri_rdma.doors.dra.publishing import Publisher
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.engine.claim_states import ClaimStates
from nri_rdma.engine.claims import Claims
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import ErrorCode, NotReadyError, SettingError
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.host.netlink.namespaces.namespace import read_boot_id
from nri_rdma.model.pool import PoolDoor
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers

REPORTED_S = 30.0
"""How long claims and ResourceSlices wait, in seconds, until the runtime has listed its pods. The kubelet waits 45 s
for an answer, and deletes the slices of a driver that has been away for 30 s."""


def make_claims_door(
    settings: Settings, engine: Engine, workers: Workers, spans: Recorder, reported: Future[None]
) -> ClaimsDoor | None:
    """Return the DRA driver for the pools with door = claims; None without such pools. The caller closes the driver.

    `reported` is done when the runtime has listed its pods. Before that no claim is prepared, and for up to REPORTED_S
    no ResourceSlices are written.
    """
    if not any(pool.door is PoolDoor.CLAIMS for pool in settings.pools):
        return None
    claims, api = Claims(engine), ApiServer(settings.kubeconfig)
    cache = engine.node
    folder = settings.cdi_dirs[-1]
    boot, states = read_boot_id(), ClaimStates(engine)
    statuses = StatusWriter(api, states.now, folder)
    states.on_news.append(statuses.news)
    node = settings.node_name or socket.gethostname().lower()
    preparer = Preparer(
        partial(_get_when_reported, reported, api),
        claims,
        node=node,
        folder=folder,
        style=lambda: _style(settings, boot),
        statuses=statuses,
        expect=engine.specs.expect,
        spans=spans,
    )
    publisher = Publisher(api, node, lambda: claims.advertise() if reported.done() else ())

    def publish() -> None:
        """Start publishing when the runtime has listed its pods, after REPORTED_S at the latest. Until then the slices
        of an earlier daemon stay."""
        reported.add_done_callback(lambda _: publisher.start())
        if not reported.done():
            start_timer(REPORTED_S, publisher.start)

    server = DraServer(settings.kubelet_plugins_dir, preparer, publish, spans)
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
    """Return a Trouble if pools serve claims and the package `kubernetes`, which they need, is not installed."""
    names = ", ".join(pool.name for pool in settings.pools if pool.door is PoolDoor.CLAIMS)
    if not names or find_spec("kubernetes") is not None:
        return ()
    error = SettingError(
        ErrorCode.SETTING,
        f'no claim can be prepared for pool {names} (door = "claims"), because kubernetes is not installed',
        hint="install nri-rdma with its extra `claims`, as docs/claims.md says, and restart the daemon",
    )
    return (Trouble(part=Part.CLAIMS, why=str(error)),)


def _get_when_reported(reported: Future[None], api: ApiServer, path: str) -> Mapping[str, Any]:
    """Read an object from the API server after the runtime has listed its pods. No claim is prepared earlier, because
    its pod could start without its devices. Raises NotReadyError if the runtime takes longer than REPORTED_S."""
    if not settled(reported, REPORTED_S):
        hint = "see that the container runtime runs with NRI: `nri-rdma status` says why it is not connected"
        raise NotReadyError(ErrorCode.NOT_READY, "the runtime has not reported its pods yet", where=path, hint=hint)
    return api.get(path)


def _style(settings: Settings, boot: str) -> SpecStyle:
    hook = settings.guard_hook
    return SpecStyle(
        prefix=settings.annotation_prefix,
        hook=hook if hook is not None and hook.is_file() else None,
        options=tuple(hook_options(settings)),
        boot=boot,
        has_numbers=settings.dev_root != Path("/dev"),
    )
