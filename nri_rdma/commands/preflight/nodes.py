"""Runs doctor on each node of a cluster that will get a daemon, and collects the findings.

For each kind of node, the chart has a DaemonSet like the daemon's, but with pods that run `nri-rdma doctor -o json
--stay`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any  # Any: objects of Kubernetes

from nri_rdma.commands.doctor.finding import Finding, Result, problem, warning
from nri_rdma.commands.leave.cluster import all_of
from nri_rdma.errors import ApiServerError
from nri_rdma.host.kubernetes.api import ApiServer

LABEL, KIND = "app.kubernetes.io/component=preflight", "nri-rdma/nodes"
"""Two labels that the chart sets: the label by which the preflight's DaemonSets and pods are found, and the label with
their kind of node."""
CLUSTER = "-"
"""Stands for a node's name, for findings that concern no single node, and for pods that are not on a node yet."""
_CHECK = "preflight"
_AGAIN_S = 1.0


def examine_nodes(
    api: ApiServer, namespace: str, without: Collection[str], within_s: float
) -> Mapping[str, tuple[Finding, ...]]:
    """Return the findings by node; findings that concern no single node are under CLUSTER. Checks named in `without`
    are left out.

    A node whose doctor does not answer within `within_s` seconds gets a problem. Raises ApiServerError if the API
    server cannot be asked.
    """
    by = time.monotonic() + within_s
    answers: dict[str, tuple[Finding, ...]] = {}
    while True:
        sets = list(all_of(api, f"/apis/apps/v1/namespaces/{namespace}/daemonsets", labelSelector=LABEL))
        pods = _pods_of(sets, all_of(api, f"/api/v1/namespaces/{namespace}/pods", labelSelector=LABEL))
        for pod in pods:
            name = pod["metadata"]["name"]
            if name not in answers and _is_running(pod):
                findings = _answer(api, namespace, name)
                if findings is not None:
                    answers[name] = findings
        is_complete = all(map(_is_counted, sets)) and len(pods) == sum(map(_wanted, sets))
        if (is_complete and all(it["metadata"]["name"] in answers for it in pods)) or time.monotonic() > by:
            return _by_node(sets, pods, answers, without, f"kubectl -n {namespace} get events")
        time.sleep(_AGAIN_S)


def rows(found: Mapping[str, Iterable[Finding]]) -> list[tuple[Finding, list[str]]]:
    """Return each problem and warning with the nodes that have it. Problems come first."""
    nodes: dict[Finding, list[str]] = {}
    for node in sorted(found):
        for finding in dict.fromkeys(found[node]):
            if finding.result in {Result.PROBLEM, Result.WARNING}:
                nodes.setdefault(finding, []).append(node)
    return sorted(nodes.items(), key=lambda it: it[0].result is not Result.PROBLEM)


def _by_node(
    sets: Iterable[Mapping[str, Any]],
    pods: Collection[Mapping[str, Any]],
    answers: Mapping[str, tuple[Finding, ...]],
    without: Collection[str],
    events: str,
) -> dict[str, tuple[Finding, ...]]:
    kinds: dict[str, list[str]] = {}
    found: dict[str, tuple[Finding, ...]] = {}
    for pod in pods:
        node, name = pod["spec"].get("nodeName", CLUSTER), pod["metadata"]["name"]
        silent = problem(_CHECK, f"pod {name} does not answer: {_state(pod)}", events)
        mine = tuple(it for it in answers.get(name, (silent,)) if it.check not in without)
        found[node] = found.get(node, ()) + mine
        kinds.setdefault(node, []).append(pod["metadata"]["labels"][KIND])
    for node, names in kinds.items():
        if len(names) > 1 and node != CLUSTER:
            words = f"the node is of {len(names)} kinds ({', '.join(sorted(names))}), but can have only one daemon"
            found[node] += (problem("nodes", words, "give these kinds nodeSelectors that tell them apart"),)
    whole = tuple(_of_sets(sets, [it["metadata"]["labels"][KIND] for it in pods], events))
    return {**found, CLUSTER: found.get(CLUSTER, ()) + whole}


def _of_sets(sets: Iterable[Mapping[str, Any]], kinds: Collection[str], events: str) -> Iterator[Finding]:
    """Yield a problem for each DaemonSet that has no pod yet on some of its nodes, and a warning for each DaemonSet
    without nodes. There is one DaemonSet for each kind of node.

    `kinds` are the kinds of node of the existing pods. `events` is the command that shows why pods are missing.
    """
    for it in sets:
        kind = it["spec"]["selector"]["matchLabels"][KIND]
        lacking = _wanted(it) - list(kinds).count(kind)
        if not _is_counted(it) or lacking > 0:
            yield problem(_CHECK, f"nodes of kind {kind} on which no pod was made: {lacking or 'not known'}", events)
        elif not _wanted(it):
            yield warning("nodes", f"no node is of kind {kind}", "compare its nodeSelector with the nodes' labels")


def _answer(api: ApiServer, namespace: str, pod: str) -> tuple[Finding, ...] | None:
    """Return the findings of the pod's doctor; None if it has not answered yet."""
    try:
        log = api.get_text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", {})
        document, _ = json.JSONDecoder().raw_decode(log[max(0, log.find("{\n")) :])
    except (ApiServerError, json.JSONDecodeError):  # tried again; in the end a missing answer becomes a problem
        return None
    return tuple(
        Finding(check=it["check"], result=Result(it["result"]), found=it["found"], fix=it["fix"])
        for it in document["checks"]
    )


def _pods_of(sets: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pods that belong to these DaemonSets. Pods of an earlier preflight may still exist; they are left
    out."""
    owners = {it["metadata"]["uid"] for it in sets}
    return [it for it in pods if any(by["uid"] in owners for by in it["metadata"].get("ownerReferences") or ())]


def _is_counted(daemon_set: Mapping[str, Any]) -> bool:
    """Return whether the DaemonSet's status is of its present version, so that its number of nodes can be trusted."""
    return bool(daemon_set.get("status", {}).get("observedGeneration") == daemon_set["metadata"]["generation"])


def _wanted(daemon_set: Mapping[str, Any]) -> int:
    return int(daemon_set.get("status", {}).get("desiredNumberScheduled", 0))


def _is_running(pod: Mapping[str, Any]) -> bool:
    return any("running" in it["state"] for it in pod.get("status", {}).get("containerStatuses") or ())


def _state(pod: Mapping[str, Any]) -> str:
    """Return why the pod does not run. The kubelet reports it; if it reports nothing, the scheduler does."""
    status = pod.get("status", {})
    for it in status.get("containerStatuses") or ():
        for state in it["state"].values():
            return f"{state.get('reason') or 'it runs'} {state.get('message', '')}".strip()
    told = [it.get("message", "") for it in status.get("conditions") or () if it.get("status") == "False"]
    return "; ".join(filter(None, told)) or str(status.get("phase", "it is new"))
