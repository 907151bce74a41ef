"""Uninstalls the chart's daemons from a cluster in a safe order: refuse if a pod has devices, clear each node, then
delete the ResourceSlices.

To clear a node means to end its daemon and remove what the daemon wrote there (nri_rdma/commands/leave/node.py).
Stopping the daemons is not enough: they leave their state on the node for the next daemon, as in an upgrade. So before
helm deletes the DaemonSets, their pods are replaced by pods that clear their node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from typing import Any  # Any: an object of Kubernetes

from nri_rdma.commands.leave.holding import Object, holding
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.errors import ApiServerError, ErrorCode, NriRdmaError
from nri_rdma.host.kubernetes.api import CALL_S, ApiServer

LABEL = "app.kubernetes.io/name=nri-rdma,app.kubernetes.io/component!=preflight"
"""The labels by which the DaemonSets of the chart's daemons are found. Those of a preflight stay if it is interrupted;
their pods write nothing, and the chart's Job may not change them."""
_CLAIMS, _SLICES = "/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1/resourceslices"
_PODS, _PAGE = "/api/v1/pods", 20
"""The path of pods, and the number of objects in one answer of the API server. The client reads 3 MiB at most, and an
object may have half of that."""
_CLEARS = "clear-node"
_AGAIN_S = 1.0
_RESTORE_S = 30.0
"""How long to retry to start the daemons again, all together. Kubernetes ends the chart's Job 60 s after its time limit
for the nodes."""
_ABSENT = 404
_HELD_HINT = (
    "delete these pods, and uninstall again. To keep nri-rdma instead: `helm rollback` to the last revision, which helm"
    " requires before the next upgrade. With `helm uninstall --no-hooks` these pods keep their devices, nobody moves"
    " their netdevs back to the host, and the files of nri-rdma stay on the nodes"
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
    """Clear all nodes, which means to end each daemon and remove what it wrote, then delete our ResourceSlices.

    `prefix` begins our annotations, and `resources` are the names of our extended resources; both show which pods have
    devices. `host_dir` is the chart's folder on each node, whose programs are removed; "" leaves it alone. `within_s`
    is the time limit in seconds, and `say` prints a line.

    Raises NriRdmaError before any change if a pod has devices. Raises it after `within_s` seconds if a node is not
    cleared; the DaemonSets are restored then, except those that an earlier uninstall has left clearing.
    """
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
            if not _is_clearing(found):  # True after an uninstall that was interrupted
                api.merge(f"{path}/{name}", clearing(found, host_dir))
        for name in before:
            _await_cleared(api, f"{path}/{name}", by, within_s)
            say(f"{name}: its nodes are cleared")
    except NriRdmaError:
        by = time.monotonic() + _RESTORE_S
        for name, found in before.items():
            if _is_clearing(found):  # its daemons are in the release of helm only
                say(f"{name}: its pods go on to clear their nodes, as after the earlier uninstall")
            else:
                say(f"{name}: {_started_again(api, f'{path}/{name}', found, by)}")
        raise
    for name in slices:
        api.delete(f"{_SLICES}/{name}")
        say(f"ResourceSlice {name} is deleted")


def clearing(daemons: Object, host_dir: str) -> dict[str, Any]:
    """Return the patch for the DaemonSet `daemons` that replaces all of its pods at once.

    Each new pod removes what the daemon wrote on its node. `host_dir` is the chart's folder on each node, whose
    programs are removed, too; "" leaves it alone.
    """
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
    """Wait until all pods of the DaemonSet at `path` have removed what the daemon wrote on their nodes. Errors of the
    API server are retried.

    Raises NriRdmaError if they are not done at `by`, in seconds of time.monotonic(). `within_s` is the whole time
    limit, for the error.
    """
    while True:
        missing = "its state is not known"
        try:
            found = api.get(path)
            if not (missing := _uncleared(found)):
                return
        except ApiServerError as error:
            missing = str(error)
        if time.monotonic() > by:
            what = f"nodes were not cleared within {within_s:.0f} s: {missing}"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=path.rpartition("/")[2], hint=_LATE_HINT)
        time.sleep(_AGAIN_S)


def _started_again(api: ApiServer, path: str, daemons: Object, by: float) -> str:
    """Restore the DaemonSet at `path` as it was read before, and return a sentence with the result. Errors of the API
    server are retried until `by`, in seconds of time.monotonic()."""
    before = {"spec": {key: daemons["spec"][key] for key in ("updateStrategy", "template")}}
    while True:
        try:
            api.merge(path, before, timeout_s=max(1.0, min(CALL_S, by - time.monotonic())))
        except ApiServerError as error:
            if time.monotonic() > by:
                return f"its daemons are not started again, which `helm rollback --force-conflicts` does: {error.what}"
        else:
            if daemons["spec"]["updateStrategy"].get("type") == "OnDelete":
                return "its daemons start again when its pods are deleted, as its updateStrategy OnDelete has it"
            return "its daemons are started again"
        time.sleep(_AGAIN_S)


def _uncleared(daemons: Object) -> str:
    """Return "M of N" if on M of the DaemonSet's N nodes the daemon's files are not removed yet; "" if all are done."""
    status = daemons.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    done = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
    if status.get("observedGeneration") == daemons["metadata"]["generation"] and done == wanted:
        return ""
    return f"{max(wanted - done, 0)} of {wanted}"


def all_of(api: ApiServer, path: str, **selector: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a collection, page by page. Yields nothing if the cluster does not have this kind of
    object."""
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
