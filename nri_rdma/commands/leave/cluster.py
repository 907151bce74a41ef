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
_PODS, _PAGE = "/api/v1/pods", 20
"""An answer has at most 3 MiB, and an object at most half of that."""
_CLEARS = "clear-node"
_AGAIN_S = 1.0
_ABSENT = 404
_HELD_HINT = (
    "delete these pods, and uninstall again. To keep nri-rdma instead: `helm rollback` to the last revision: helm"
    " upgrades nothing before. With `helm uninstall --no-hooks` these pods keep their devices, nobody brings their"
    " netdevs back to the host, and what nri-rdma has written stays on the nodes"
)
_LATE_HINT = (
    "see `kubectl get pods -o wide` and the log of the container clear-node; if these nodes do not come back:"
    " `helm uninstall --no-hooks`. To keep nri-rdma instead: `helm rollback --force-conflicts`"
)
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
    that is not cleared within so many seconds; then daemons run everywhere as before. `host_dir` is the folder that the
    chart has made on each node; "" leaves it there."""
    held = holding(all_of(api, _PODS), all_of(api, _CLAIMS), prefix, resources)
    if held:
        what = f"{len(held)} pods have devices, or wait for some: {'; '.join(held)}"
        raise NriRdmaError(ErrorCode.INSTALL, what, hint=_HELD_HINT)
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
    before = {it["metadata"]["name"]: it for it in all_of(api, path, labelSelector=LABEL)}
    slices = [it["metadata"]["name"] for it in all_of(api, _SLICES, fieldSelector=f"spec.driver={DRIVER}")]
    by = time.monotonic() + within_s
    try:
        for name, found in before.items():
            if not _is_clearing(found):  # else an uninstall was broken off
                api.merge(f"{path}/{name}", clearing(found, host_dir))
        for name in before:
            _await_cleared(api, f"{path}/{name}", by, within_s)
            say(f"{name}: its nodes are cleared")
    except NriRdmaError:
        for name, found in before.items():
            api.merge(f"{path}/{name}", {"spec": {key: found["spec"][key] for key in ("updateStrategy", "template")}})
        raise
    for name in slices:
        api.delete(f"{_SLICES}/{name}")
        say(f"ResourceSlice {name} is deleted")


def clearing(daemons: Object, host_dir: str) -> dict[str, Any]:
    """Return the change of a DaemonSet by which its pods clear their node instead of serving it, all at once."""
    template = daemons["spec"]["template"]["spec"]
    (daemon,) = (it for it in template["containers"] if it["name"] == "nri-rdma")
    clears = {key: deepcopy(it) for key, it in daemon.items() if not key.endswith("Probe")}
    clears["name"] = _CLEARS
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


def _is_clearing(daemons: Object) -> bool:
    return any(it["name"] == _CLEARS for it in daemons["spec"]["template"]["spec"].get("initContainers") or ())


def _await_cleared(api: ApiServer, path: str, by: float, within_s: float) -> None:
    """Wait until each pod of a DaemonSet has cleared its node, however often the API server fails meanwhile."""
    while True:
        missing = "its state is not known"
        try:
            found = api.get(path)
            if not (missing := _uncleared(found)):
                return
        except ApiServerError as error:
            missing = str(error)
        if time.monotonic() > by:
            what = f"nodes were not cleared within {within_s:.0f} s, and the daemons are started again: {missing}"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=path.rpartition("/")[2], hint=_LATE_HINT)
        time.sleep(_AGAIN_S)


def _uncleared(daemons: Object) -> str:
    """Return how many nodes of how many are not cleared, "" when all are."""
    status = daemons.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    done = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
    if status.get("observedGeneration") == daemons["metadata"]["generation"] and done == wanted:
        return ""
    return f"{max(wanted - done, 0)} of {wanted}"


def all_of(api: ApiServer, path: str, **selector: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a collection, page by page; none where the cluster does not know their kind."""
    query = {"limit": str(_PAGE), **selector}
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
