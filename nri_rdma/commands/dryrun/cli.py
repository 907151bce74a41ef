"""`nri-rdma run --dry-run`: prints what the daemon would do, one line for each pod and container."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any  # Any: JSON documents

from nri_rdma.commands.common.screen import printable
from nri_rdma.model.request import UNLIMITED

if TYPE_CHECKING:
    from nri_rdma.attach.record import SandboxRecord
    from nri_rdma.commands.dryrun.verdicts import ContainerVerdict, PodVerdict
    from nri_rdma.config.settings import Settings
    from nri_rdma.model.edits import ContainerEdits
    from nri_rdma.model.pod import Pod

NOTHING_CHANGED = "nothing was changed"


def dry_run(settings: Settings, output: str) -> None:
    """Report decisions until SIGINT or SIGTERM. Raises NriRdmaError or OSError if the dry run cannot start, such as
    without readable hardware."""
    from nri_rdma.commands.dryrun.run import DryRun, dry_identity

    reporter = Reporter(as_json=output == "json")
    run = DryRun(settings, reporter)
    reporter.on_closed = run.stop
    identity = dry_identity(settings)
    reporter.began(settings, f"{identity.index}-{identity.name}", len(run.node.devices), _daemon(settings))
    try:
        run.run()
    finally:
        reporter.finished()


def _daemon(settings: Settings) -> int | None:
    """Return the PID of the running daemon; None if no daemon answers."""
    from nri_rdma.doors.control.daemon_client import ask_status
    from nri_rdma.errors import NotReadyError

    try:
        return int(ask_status(settings.control_path)["daemon"]["pid"])
    except NotReadyError:
        return None


@dataclass(slots=True)
class _Counts:
    pods: Counter[str] = field(default_factory=Counter)
    containers: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Reporter:
    """Prints each decision at once, as a line of text or a JSON object, and a summary at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts = _Counts()
        self._is_closed = False
        self.on_closed: Callable[[], None] = lambda: None
        """Called when nobody reads stdout any more, as after `| head`."""

    def began(self, settings: Settings, plugin: str, devices: int, daemon: int | None) -> None:
        """Print the first line: the plugin's name, the socket, the number of devices, and the running daemon's PID in
        `daemon` (None: no daemon runs)."""
        self._print(
            {
                "event": "started",
                "dry_run": True,
                "plugin": plugin,
                "nri_socket": str(settings.nri_socket),
                "devices": devices,
                "daemon": daemon,
            },
            f"dry run as {plugin} on {settings.nri_socket}, {_counted(devices, 'RDMA device')}: nothing is changed, and"
            " no pod is refused. Ctrl-C ends it.",
        )
        if daemon is not None and not self._as_json:
            print(f"A daemon runs, too (pid {daemon}): pods with devices from it are not decided again.", flush=True)

    def pod(self, verdict: PodVerdict) -> None:
        """Print the decision for a pod."""
        word = _word(verdict)
        self._counts.pods[word] += 1
        if verdict.refusal is not None:
            self._counts.refused[str(verdict.refusal.code)] += 1
        document = {"event": "pod", **_pod(verdict.pod), "was_there": verdict.was_there, "would": word}
        if verdict.has:
            document |= {"devices": [{"device": name} for name in verdict.has]}
        if verdict.record is not None:
            document |= {"devices": list(_devices(verdict.record)), "isolation": verdict.record.isolation}
        if verdict.refusal is not None:
            document |= {"code": str(verdict.refusal.code), "error": str(verdict.refusal)}
        there = " (was there before)" if verdict.was_there else ""
        self._print(document, f"pod {verdict.pod}{there}: {_pod_words(verdict)}")

    def container(self, verdict: ContainerVerdict) -> None:
        """Print the decision for a container."""
        self._counts.containers += 1
        document = {
            "event": "container",
            "pod": verdict.pod_name,
            "sandbox": verdict.sandbox_id,
            "container": verdict.container,
            "would": _container_word(verdict),
        }
        if verdict.refusal is not None:
            document |= {"code": str(verdict.refusal.code), "error": str(verdict.refusal)}
        else:
            document |= _edits(verdict.edits)
        self._print(document, f"  container {verdict.pod_name}/{verdict.container}: {_container_words(verdict)}")

    def ended(self, pod: Pod) -> None:
        """Print that a pod has ended."""
        self._print({"event": "ended", **_pod(pod)}, f"pod {pod}: ended")

    def finished(self) -> None:
        """Print the summary. Raises BrokenPipeError if nobody reads stdout any more."""
        if self._is_closed:
            raise BrokenPipeError(errno.EPIPE, "nobody reads what is printed")
        pods, refused = self._counts.pods, dict(sorted(self._counts.refused.items()))
        codes = ", ".join(f"{code} {count}" for code, count in refused.items())
        self._print(
            {
                "event": "finished",
                "pods": pods.total(),
                "attach": pods["attach"],
                "refuse": pods["refuse"],
                "nothing": pods["nothing"],
                "served": pods["served"],
                "codes": refused,
                "containers": self._counts.containers,
                "changed": 0,
            },
            f"dry run ended: {_counted(pods.total(), 'pod')}, {_counted(self._counts.containers, 'container')};"
            f" would attach: {pods['attach']}, would refuse: {pods['refuse']}{f' ({codes})' if codes else ''},"
            f" asking for nothing: {pods['nothing']}, served by the daemon: {pods['served']}; {NOTHING_CHANGED}",
        )

    def _print(self, document: dict[str, Any], words: str) -> None:
        if self._is_closed:
            return
        try:
            print(json.dumps(document) if self._as_json else printable(words), flush=True)
        except BrokenPipeError:  # as with `| head`: there is no reader any more, so end the dry run
            self._is_closed = True
            self.on_closed()


def _word(verdict: PodVerdict) -> str:
    if verdict.refusal is not None:
        return "refuse"
    if verdict.has:
        return "served"
    return "attach" if verdict.record is not None else "nothing"


def _container_word(verdict: ContainerVerdict) -> str:
    if verdict.refusal is not None:
        return "refuse"
    if verdict.served:
        return "served"
    return "give" if _gives(verdict.edits) else "nothing"


def _pod(pod: Pod) -> dict[str, Any]:
    return {"pod": str(pod), "uid": pod.uid, "sandbox": pod.sandbox_id}


def _devices(record: SandboxRecord) -> Iterator[dict[str, Any]]:
    moves = {(move.device, move.pod_name): move for move in record.plan.moves}
    for request in record.attached:
        for item in request.devices:
            yield {
                "device": item.device.name,
                "request": request.admitted.request.name,
                "mode": str(request.admitted.mode),
                "netdevs": [
                    {"name": move.link.name, "pod_name": pod_name, "takes": list(move.takes.words)}
                    for (device, pod_name), move in moves.items()
                    if device == item.device.name
                ],
            }


def _edits(edits: ContainerEdits) -> dict[str, Any]:
    return {
        "char_devices": [{"path": it.path, "major": it.major, "minor": it.minor} for it in edits.char_devices],
        "env": dict(edits.env),
        "memlock": edits.memlock,
        "rdma_max": list(edits.rdma_max),
    }


def _gives(edits: ContainerEdits) -> bool:
    return bool(edits.char_devices or edits.env or edits.rdma_max or edits.memlock is not None)


def _pod_words(verdict: PodVerdict) -> str:
    if verdict.refusal is not None:
        return f"would be refused: {verdict.refusal}"
    if verdict.has:
        return f"has {', '.join(verdict.has)} from the daemon"
    if verdict.record is None:
        return "asks for nothing"
    devices = ", ".join(
        f"{it['device']} {it['mode']}"
        + "".join(
            f" with {netdev['name']} as {netdev['pod_name']}{_taken_words(netdev['takes'])}" for netdev in it["netdevs"]
        )
        for it in _devices(verdict.record)
    )
    isolation = f"; isolation {verdict.record.isolation}" if verdict.record.isolation is not None else ""
    return f"would get {devices}{isolation}"


def _taken_words(takes: list[str]) -> str:
    return f" and its {', '.join(takes)}" if takes else ""


def _container_words(verdict: ContainerVerdict) -> str:
    if verdict.refusal is not None:
        return f"would not be made: {verdict.refusal.code}"
    if verdict.served:
        return "the daemon answers for it"
    if not _gives(verdict.edits):
        return "would get nothing"
    edits = verdict.edits
    parts = [
        " ".join(it.path for it in edits.char_devices),
        " ".join(f'{key}="{value}"' for key, value in edits.env),
        "" if edits.memlock is None else f"memlock {'unlimited' if edits.memlock == UNLIMITED else edits.memlock}",
        f"rdma.max {', '.join(edits.rdma_max)}" if edits.rdma_max else "",
    ]
    return f"would get {'; '.join(part for part in parts if part)}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
