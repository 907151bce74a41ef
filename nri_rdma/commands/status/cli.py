"""`nri-rdma status`: shows what the daemon is doing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any  # Any: the daemon's JSON document

import click

from nri_rdma.commands.common.options import asking_options, output_option
from nri_rdma.commands.common.screen import Screen, TextTable, age, print_json, printable
from nri_rdma.commands.status.driver_line import UNSERVED_S, driver_attention, driver_facts
from nri_rdma.config.settings import Settings
from nri_rdma.doors.nri.runtime_link import Link, hooks_only, unsynchronized
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.request import UNLIMITED

if TYPE_CHECKING:
    from nri_rdma.host.guard_setups import Setup

EXIT_ATTENTION = 1
_ID_LENGTH = 13
"""The length of a sandbox id in the output of crictl."""


@click.command()
@asking_options("state_dir", "control_socket", "containerd_socket")
@output_option
@click.option("--check", is_flag=True, help="Show only what needs attention, and end with 1 if anything does.")
@click.option("--require-guard", is_flag=True, help="With --check: also report runtime handlers without the guard.")
@click.option("--except-handler", "excluded", multiple=True, metavar="NAME", help="A handler that needs no guard.")
@click.pass_context
def status(
    context: click.Context,
    settings: Settings,
    output: str,
    check: bool,
    require_guard: bool,
    excluded: tuple[str, ...],
) -> None:
    """Show what the daemon is doing, and which pods hold which devices.

    How much of a device containers use and may use is read from their cgroups at this moment.

    The command warns about a missing guard (the OCI hook that keeps a container from starting without its devices),
    pods that run without their devices, and devices that could not be returned to the host. Ends with 3 if the daemon
    does not answer.

    --check is for probes and monitoring. It reports: the daemon does not answer; the runtime is not connected; a
    configuration was refused; metrics are not served; a resource or the DRA driver has not been registered with the
    kubelet for a minute; the driver cannot publish its devices; another driver publishes them; claims do not get
    devices because their netdevs are missing; devices could not be returned to the host; pods run without their
    devices; containers did not start. Refused pods are not reported.

    --require-guard adds: the containers of a runtime handler have no guard, or that is unknown. It adds nothing if the
    kubelet serves the guard resource, an extended resource that brings the guard.

    \b
    Example:
      nri-rdma status
      nri-rdma status -o json
      nri-rdma status --check
      nri-rdma status --check --require-guard --except-handler kata
    """
    if require_guard and not check:
        raise click.UsageError("--require-guard is for --check")
    from nri_rdma.commands.doctor.guard import ThisHost, given_resource, setups_of
    from nri_rdma.commands.status.container_pods import with_names
    from nri_rdma.commands.status.document_check import look_through
    from nri_rdma.commands.status.guard_line import lacking_guard

    document = _asked(context, settings, check=check, as_json=output == "json")
    host = ThisHost(settings=replace(settings, annotation_prefix=document["annotation_prefix"]))

    def unguarded() -> Iterator[str]:
        return lacking_guard(setups_of(host), excluded, given_resource(document.get("guard_resource")))

    if output == "json":
        print_json(document)
        if check and (any(attention(document)) or (require_guard and any(unguarded()))):
            context.exit(EXIT_ATTENTION)
        return
    look_through(document)
    if check:
        found = (*attention(document), *(unguarded() if require_guard else ()))
        for line in found:
            click.echo(printable(line))
        context.exit(EXIT_ATTENTION if found else 0)
    screen, document = Screen(), with_names(document)
    screen.facts(tuple(_facts(document, setups_of(host))))
    for table in _tables(document):
        screen.line()
        screen.table(table)


def _asked(context: click.Context, settings: Settings, *, check: bool, as_json: bool) -> dict[str, Any]:
    """Return the daemon's status document. With `check`, the command prints a line and ends if the daemon does not
    answer."""
    from nri_rdma.doors.control.daemon_client import ask_status

    try:
        return ask_status(settings.control_path)
    except NotReadyError as error:
        if not check or error.code is ErrorCode.PRIVILEGE:
            raise
        click.echo(printable(str(error)), err=as_json)
        context.exit(EXIT_ATTENTION)


def attention(document: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem that needs a person's attention."""
    runtime = document["runtime"]
    if why := unsynchronized(runtime["link"], runtime["socket"], runtime["error"]):
        yield why
    if document.get("reload_error"):
        yield f"the settings are as before: {document['reload_error']}"
    for it in document.get("troubles", ()):  # older daemons do not send this field
        yield f"{it['part']}: {it['why']}"
    if (metrics := document.get("metrics")) and metrics["error"]:  # older daemons do not send this field
        yield f"metrics are not served: {metrics['error']}"
    yield from _unserved_resources(document)
    if driver := document.get("driver"):  # older daemons do not send this field
        yield from driver_attention(driver, time.time())
    for it in document["sandboxes"]:
        if it["undo_error"]:
            yield f"devices of {it['pod']} could not be returned to the host: {it['undo_error']}"
    for pod, container, answers, time_since in _unstarted(document["sandboxes"]):
        yield f"container {container} of {pod} did not start for {time_since}, after {answers} answers"
    for it in document["unserved"]:
        yield f"{it['pod']} runs without what it asks for: {it['why']}"


def _unserved_resources(document: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each extended resource that the kubelet cannot allocate, so that pods wait for it."""
    for pool in document["pools"]:
        known = pool.get("registration")  # older daemons do not send this field
        if known and known["error"] and time.time() - known["since"] > UNSERVED_S:
            yield f"the kubelet does not know {pool['resource']} of pool {pool['name']}: {known['error']}"
    guard = document.get("guard_resource")  # older daemons do not send this field
    if not guard:
        return
    known = guard["registration"]
    if known["error"] and time.time() - known["since"] > UNSERVED_S:
        yield f"the kubelet does not know the guard resource {guard['resource']}: {known['error']}"
    elif not known["error"] and not guard["guarded"]:
        yield f"pods with the guard resource {guard['resource']} wait: {guard['guarding']}"


def _facts(document: dict[str, Any], setups: tuple[Setup, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the lines that `status` prints above its tables. `setups` says for each runtime handler whether its
    containers get the guard, an OCI hook that keeps a container from starting without its devices."""
    daemon, runtime = document["daemon"], document["runtime"]
    commit = f" (commit {daemon['revision']})" if daemon.get("revision") else ""  # older daemons do not send this field
    yield (
        "Daemon",
        f"nri-rdma {daemon['version']}{commit}, pid {daemon['pid']}, up {age(time.time() - daemon['started'])}",
    )
    yield from _runtime(runtime)
    if document.get("reload_error"):  # older daemons do not send this field
        yield "Settings", f"WARNING, as before: {document['reload_error']}"
    for it in document.get("troubles", ()):
        yield it["part"].capitalize(), f"WARNING: {it['why']}"
    if runtime["link"] != Link.NONE:
        yield from _guard(document, setups)
    for pool in document["pools"]:
        yield "Pool", f"{pool['name']}: {', '.join(pool['modes'])}; {_devices_of(pool)}"
        if resource := pool.get("resource"):
            has = {"all": "shares given, each every device", "device": "devices given, each to one pod"}
            how = has.get(pool["gives"], "shares given, each one device")
            yield "", f"{resource}: {pool['given']} of {pool['shares']} {how}"
            yield from (("", words) for words in _share_limits(pool))
            yield from _registration(pool.get("registration"))  # older daemons do not send this field
            if not pool["guarded"]:
                why = pool.get("guarding", "see docs/configuration.md, Shares")  # older daemons do not send this field
                yield "", f"WARNING, its containers have no guard: {why}"
        if pool["contested"]:
            yield "", f"WARNING, other pools select too, so that none has: {', '.join(pool['contested'])}"
    if driver := document.get("driver"):  # older daemons do not send this field
        yield from driver_facts(driver, time.time())
    if document["policy"]["rules"]:
        yield "Rules", f"{len(document['policy']['rules'])}, see `nri-rdma config show`"
    yield "RDMA netns", document["rdma_netns"]
    yield "rdma cgroup", "yes" if document["rdma_cgroup"] else "no (limits are refused)"
    yield "Memlock", f"{_memlock(document['memlock']['bytes'])}: {document['memlock']['reason']}"
    yield from _traces(document.get("traces"))
    yield from _metrics(document.get("metrics"))  # older daemons do not send this field
    yield "Namespaces", f"{document['namespaces_held']} held open"
    if closing := document.get("pinned", {}).get("closing"):
        yield "", f"WARNING, {closing} cannot be closed: a kernel call inside does not return"


def _runtime(runtime: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if runtime["link"] == Link.NONE:
        yield "Runtime", f"not needed: {hooks_only(runtime['engines'])}"
        return
    who = f"{runtime['name']} {runtime['version']}".strip() or "not known yet"
    how = "which started this daemon" if runtime.get("launched") else runtime["socket"]
    yield "Runtime", f"{who}: {runtime['link']}, {how}"
    if runtime["error"]:
        since = runtime.get("error_since")  # older daemons do not send this field
        yield "", f"last error{f', for {age(time.time() - since)}' if since else ''}: {runtime['error']}"
    if runtime.get("name"):
        yield "", f"NRI {runtime.get('nri') or 'of a release that is not known'}"
    for lack in runtime.get("lacks", ()):
        yield "", f"does not apply: {lack}"


def _guard(document: dict[str, Any], setups: tuple[Setup, ...]) -> Iterator[tuple[str, str]]:
    from nri_rdma.commands.doctor.guard import given_resource
    from nri_rdma.commands.status.guard_line import guard_facts

    resource = document.get("guard_resource")  # older daemons do not send this field
    yield from guard_facts(document["guard"], setups, time.time(), given_resource(resource))
    if resource:
        yield "", f"{resource['resource']}: the guard of pods to which an admission policy gives it"
        yield from _registration(resource["registration"])
        if not resource["guarded"]:
            yield "", f"WARNING, pods with it wait: {resource['guarding']}"


def _registration(registration: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if registration is None:
        return
    ago = age(max(0.0, time.time() - registration["since"]))
    if registration["error"]:
        yield "", f"WARNING, the kubelet does not know it, for {ago}: {registration['error']}"
    else:
        yield "", f"registered with the kubelet {ago} ago"


def _metrics(metrics: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if metrics is not None:
        words = f"http://{metrics['address']}/metrics, and /healthz"
        yield "Metrics", f"WARNING, not served: {metrics['error']}" if metrics["error"] else words


def _traces(traces: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if traces is None:
        return
    yield "Traces", f"{traces['exported']} spans exported, {traces['waiting']} wait"
    if lost := traces["dropped"] + traces["failed"]:
        how = f"{traces['failed']} not taken, {traces['dropped']} dropped because too many waited"
        yield "", f"WARNING, {lost} lost ({how}): {traces['error']}"


def _devices_of(pool: dict[str, Any]) -> str:
    count = len(pool["devices"])
    return f"{count} device{'' if count == 1 else 's'}"


def _share_limits(pool: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each set of rdma cgroup limits, with the devices that have it. The limits are those of one
    share, a unit of the pool's extended resource."""
    told: dict[str, list[str]] = {}
    for device, it in pool.get("limits", {}).items():  # older daemons do not send this field
        told.setdefault(it["words"], []).append(device)
    for words, devices in told.items():
        yield f"limits of a share on {', '.join(devices)}: {words}"


def _tables(document: dict[str, Any]) -> Iterator[TextTable]:
    if document["devices"]:
        yield _devices(document)
    else:
        yield TextTable(title="This machine has no RDMA device.", headings=(), rows=())
    if document["sandboxes"]:
        yield _sandboxes(document["sandboxes"])
    if unstarted := tuple(_unstarted(document["sandboxes"])):
        title = "WARNING: containers that nri-rdma prepared and that did not start; the pod's events say why"
        yield TextTable(title=title, headings=("POD", "CONTAINER", "ANSWERS", "FOR"), rows=unstarted)
    if proven := tuple(_proven(document["sandboxes"])):
        title = "Containers in which RDMA was proven to work before they started"
        yield TextTable(title=title, headings=("POD", "CONTAINER", "PROVEN", "TOOK"), rows=proven)
    if document.get("rdma_use"):  # older daemons do not send this field
        yield _rdma_use(document["rdma_use"])
    if document.get("from_others"):  # older daemons do not send this field
        yield _from_others(document["from_others"])
    if document.get("alignment"):  # older daemons do not send this field
        yield _alignment(document["alignment"])
    if document.get("images"):  # older daemons do not send this field
        yield from _images(document["images"])
    if document["unserved"]:
        rows = tuple((item["pod"], item["why"]) for item in document["unserved"])
        title = f"WARNING: pods that run without what they ask for{_since_start(document)}"
        yield TextTable(title=title, headings=("POD", "WHY"), rows=rows)
    if document.get("lost_netdevs"):  # older daemons do not send this field
        yield _lost(document["lost_netdevs"], document["lost_count"], time.time())
    if document.get("refused"):  # older daemons do not send this field
        yield _refused(document["refused"], time.time())


def _lost(rows: list[dict[str, Any]], count: int, now: float) -> TextTable:
    return TextTable(
        title=f"WARNING: netdevs that pods have lost ({count} since the start): make virtual ones again on the host",
        headings=("NETDEV", "KIND", "DEVICE", "POD", "AGO", "WHY"),
        rows=tuple((it["netdev"], it["kind"], it["device"], it["pod"], age(now - it["at"]), it["why"]) for it in rows),
    )


def _refused(rows: list[dict[str, Any]], now: float) -> TextTable:
    return TextTable(
        title="Refused in the last 10 minutes; `nri-rdma trace POD` shows each",
        headings=("POD", "CALL", "CODE", "TIMES", "LAST", "WHY"),
        rows=tuple(
            (
                it["pod"] + (f"\ncontainer {it['container']}" if it["container"] else ""),
                it["call"],
                it["code"],
                str(it["count"]),
                f"{age(max(0.0, now - it['last']))} ago",
                it["error"].removeprefix(f"nri-rdma: {it['code']}: "),
            )
            for it in rows
        ),
    )


def _since_start(document: dict[str, Any]) -> str:
    """Return words for the number of pods, since the daemon's start, that ran without the devices they ask for. "" if
    all of these pods still run."""
    count = document.get("unserved_count", 0)  # older daemons do not send this field
    return f" ({count} since the daemon's start)" if count > len(document["unserved"]) else ""


def _devices(document: dict[str, Any]) -> TextTable:
    moves = [move for sandbox in document["sandboxes"] for move in sandbox["moves"]]
    return TextTable(
        title="",
        headings=("DEVICE", "PCI", "NUMA", "STATE", "NETDEV", "HELD BY"),
        rows=tuple(
            (
                device["name"],
                device["pci"] or "-",
                "-" if device["numa_node"] is None else str(device["numa_node"]),
                device["state"] or "-",
                _netdev_words(device, moves),
                _held_by(device),
            )
            for device in document["devices"]
        ),
    )


def _netdev_words(device: dict[str, Any], moves: list[dict[str, Any]]) -> str:
    """Return words that say where the device's netdevs are. A netdev that moved into a pod is left out of the host's,
    even if the daemon has not read the node since."""
    gone = {it["netdev"]["name"]: it["pod_name"] for it in moves if it["device"] == device["name"]}
    here = [netdev["name"] for netdev in device["netdevs"] if netdev["name"] not in gone]
    away = [f"{name} as {pod_name}" for name, pod_name in gone.items()]
    return ", ".join([*here, *away]) or "none"


def _held_by(device: dict[str, Any]) -> str:
    holders = [f"{it['pod']} ({'looks on' if it.get('looksOn') else it['mode']})" for it in device["holders"]]
    if holders:
        return ", ".join(holders)
    uses = [*device["in_use"], *device["used_by_some"]]
    if uses:
        return f"the host: {'; '.join(uses)}"
    ties = [f"{it['name']} {reason}" for it in device["netdevs"] for reason in it.get("unreturnable", ())]
    return f"nobody, can only be shared: {'; '.join(ties)}" if ties else "-"


def _sandboxes(sandboxes: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        title="",
        headings=("POD", "SANDBOX", "STATE", "DEVICES"),
        rows=tuple(
            (
                item["pod"],
                item["id"][:_ID_LENGTH] + (f" (container {item['part']})" if item.get("part") else ""),
                item["state"],
                _device_words(item) + (f"\nUNDO FAILED: {item['undo_error']}" if item["undo_error"] else ""),
            )
            for item in sandboxes
        ),
    )


def _unstarted(sandboxes: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for sandbox in sandboxes:
        for it in sandbox.get("unstarted", ()):  # older daemons do not send this field
            yield sandbox["pod"], it["container"], str(it["answers"]), age(it["seconds"])


def _proven(sandboxes: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for sandbox in sandboxes:
        for it in sandbox.get("proofs", ()):  # older daemons do not send this field
            if not it["code"]:
                yield sandbox["pod"], it["container"], "\n".join(it["ports"]), f"{it['took_ms']:.0f} ms"


def _device_words(sandbox: dict[str, Any]) -> str:
    words = ", ".join(sandbox["devices"])
    if sandbox["isolation"]:
        words += f"\nisolation {sandbox['isolation']}"
    # Older daemons do not send these fields.
    left_out = (f"\n{it['pod_name']} without {what}" for it in sandbox["moves"] for what in it.get("left_out", ()))
    gids = (f"\n{it['words']}" for it in sandbox.get("gids", ()))
    warnings = (f"\nWARNING: {it}" for it in sandbox.get("gid_warnings", ()))
    return words + "".join((*left_out, *gids, *warnings))


def _rdma_use(rows: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        title="",
        headings=("POD", "CONTAINER", "DEVICE", "HCA HANDLES", "HCA OBJECTS"),
        rows=tuple(
            (it["pod"], it["container"], it["device"], _counted(it["hca_handle"]), _counted(it["hca_object"]))
            for it in rows
        ),
    )


def _from_others(rows: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        title="Devices that others gave to containers",
        headings=("POD", "CONTAINER", "WHAT", "DEVICES", "KNOWN BY", "ADOPT"),
        rows=tuple(
            (
                it["pod"],
                it["container"] + (" (privileged)" if it["is_privileged"] else ""),
                it["what"],
                ", ".join(it["devices"]) or "-",
                it["source"],
                it["adopt"],
            )
            for it in rows
        ),
    )


def _alignment(rows: list[dict[str, Any]]) -> TextTable:
    return TextTable(
        title="Devices beside the GPUs of their containers",
        headings=("POD", "CONTAINER", "ALIGNMENT", "GPUS KNOWN BY"),
        rows=tuple(
            (
                it["pod"],
                it["container"],
                it["words"] + (f"\nPROBLEM: {it['problem']}" if it["problem"] else ""),
                it["gpus_from"],
            )
            for it in rows
        ),
    )


def _images(rows: list[dict[str, Any]]) -> Iterator[TextTable]:
    told = [it for it in rows if it["code"]]
    if told:
        yield TextTable(
            title="WARNING: the libraries in these containers' images cannot use their devices",
            headings=("POD", "CONTAINER", "CODE", "WHY"),
            rows=tuple(
                (it["pod"], it["container"], it["code"], it["error"].removeprefix(f"nri-rdma: {it['code']}: "))
                for it in told
            ),
        )
    if unseen := [it for it in rows if not it["code"]]:
        reasons = Counter(it["error"] for it in unseen)
        yield TextTable(
            title="Images whose libraries could not be checked",
            headings=("CONTAINERS", "WHY"),
            rows=tuple((str(count), why) for why, count in reasons.items()),
        )


def _counted(value: dict[str, Any]) -> str:
    return f"{value['used']}/{'max' if value['limit'] is None else value['limit']}"


def _memlock(value: int | None) -> str:
    if value is None:
        return "as the runtime has it"
    return "unlimited" if value == UNLIMITED else f"{value} bytes"
