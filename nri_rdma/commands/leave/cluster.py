"""Ends the daemons of a chart in the safe order: no pod has devices, each node is cleared, then nothing is published.

A stop alone says nothing: after an upgrade the next daemon takes over what the last one left. So before the DaemonSets
are deleted, each one's pods are replaced by pods that clear their node (nri_rdma/commands/leave/node.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from typing import Any  # Any: an object of Kubernetes

from nri_rdma.commands.leave.holding import Object, holding
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.errors import ApiServerError, ErrorCode, NriRdmaError
from nri_rdma.host.kubernetes.api import ApiServer

LABEL = "app.kubernetes.io/name=nri-rdma"
"""Of the DaemonSets, as the chart has it."""
_CLAIMS, _SLICES = "/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1/resourceslices"
_PODS, _PAGE = "/api/v1/pods", 100
_AGAIN_S = 1.0
_ABSENT = 404
_PAUSE = ("/opt/nri-rdma/bin/python3", "-I", "-S", "-c", "import signal; signal.sigwait([signal.SIGTERM])")


def leave_cluster(
    api: ApiServer,
    namespace: str,
    prefix: str,
    resources: Collection[str],
    host_dir: str,
    within_s: float,
    say: Callable[[str], None],
) -> None:
    """Clear all nodes, or raise NriRdmaError: with a pod that has devices before anything is changed, and for a node
    that is not cleared within so many seconds. `host_dir` is the folder that the chart has made on each node; "" leaves
    it there."""
    held = holding(_all(api, _PODS), _all(api, _CLAIMS), prefix, resources)
    if held:
        what = f"{len(held)} pods have devices, or wait for some: {'; '.join(held)}"
        hint = (
            "delete these pods, and uninstall again. With `helm uninstall --no-hooks` they keep their devices, nobody"
            " brings their netdevs back to the host, and what nri-rdma has written stays on the nodes"
        )
        raise NriRdmaError(ErrorCode.INSTALL, what, hint=hint)
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    names = [it["metadata"]["name"] for it in _all(api, path, LABEL)]
    for name in names:
        api.merge(f"{path}/{name}", clearing(api.get(f"{path}/{name}"), host_dir))
    by = time.monotonic() + within_s
    for name in names:
        while not _is_cleared(found := api.get(f"{path}/{name}")):
            if time.monotonic() > by:
                raise _late(name, found["status"], within_s)
            time.sleep(_AGAIN_S)
        say(f"{name}: {found['status'].get('desiredNumberScheduled', 0)} nodes are cleared")
    for found in _all(api, _SLICES):
        if found["spec"].get("driver") == DRIVER:
            api.delete(f"{_SLICES}/{found['metadata']['name']}")
            say(f"ResourceSlice {found['metadata']['name']} is deleted")


def clearing(daemons: Object, host_dir: str) -> dict[str, Any]:
    """Return the change of a DaemonSet by which its pods clear their node instead of serving it, all at once."""
    template = daemons["spec"]["template"]["spec"]
    (daemon,) = (it for it in template["containers"] if it["name"] == "nri-rdma")
    clears = {key: deepcopy(it) for key, it in daemon.items() if not key.endswith("Probe")}
    clears["name"] = "clear-node"
    clears["args"] = ["uninstall", "node", *(["--host-dir", host_dir] if host_dir else [])]
    for mount in clears["volumeMounts"]:
        if mount["mountPath"] == host_dir:
            mount["readOnly"] = False
    waits = {key: daemon[key] for key in ("name", "image", "imagePullPolicy", "securityContext") if key in daemon}
    return {
        "spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}},
            "template": {"spec": {"initContainers": [clears], "containers": [{**waits, "command": list(_PAUSE)}]}},
        }
    }


def _is_cleared(daemons: Object) -> bool:
    status = daemons.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    counts = {status.get("updatedNumberScheduled", 0), status.get("numberReady", 0)}
    return status.get("observedGeneration") == daemons["metadata"]["generation"] and counts == {wanted}


def _late(name: str, status: Object, within_s: float) -> NriRdmaError:
    missing = status.get("desiredNumberScheduled", 0) - status.get("numberReady", 0)
    what = f"{missing} nodes of DaemonSet {name} were not cleared within {within_s:.0f} s"
    hint = (
        "see `kubectl get pods -o wide` and the log of their container clear-node; if these nodes do not come back:"
        " `helm uninstall --no-hooks`"
    )
    return NriRdmaError(ErrorCode.INSTALL, what, hint=hint)


def _all(api: ApiServer, path: str, labels: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a collection, page by page; none where the cluster does not know their kind."""
    query = {"limit": str(_PAGE), "labelSelector": labels}
    try:
        while True:
            page = api.get(path, query)
            yield from page.get("items") or ()
            query["continue"] = page.get("metadata", {}).get("continue", "")
            if not query["continue"]:
                return
    except ApiServerError as error:
        if error.status != _ABSENT:
            raise
