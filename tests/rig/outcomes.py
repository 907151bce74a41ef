"""What became of containers, by what happened to the daemon and by what they asked for: a file for each runtime.

The words of an outcome are those of docs/outcomes.md, which tests/rig/outcomes_page.py writes.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.rig import cache

BUILD = cache.PROJECT / "build"
SITUATIONS = {
    "runs": "runs",
    "never": "was never started",
    "before": "is killed before the pod comes",
    "between": "is killed between sandbox and container",
    "in-sandbox": "is killed during RunPodSandbox",
    "in-container": "is killed while the container is made",
    "stopped": "is stopped (SIGSTOP) past the time-out",
    "woken": "is stopped past the time-out, and goes on before the container starts",
    "upgraded": "is upgraded before the container starts",
}
"""What happens to the daemon, by a word for the name of a test."""
ASKS = {
    "nothing": "nothing",
    "annotation": "annotation",
    "share": "share",
    "claim": "claim",
    "unnamed": "claim that no container names",
    "second": "second pod of such a claim",
    "group": "claim of a PodGroup",
    "cdi": "CDI device",
    "unguarded": "annotation, no guard",
    "unguarded-claim": "claim, no guard of the runtime",
    "unguarded-unnamed": "claim that no container names, no guard of the runtime",
    "resource": "annotation, guard resource",
    "resource-unnamed": "claim that no container names, guard resource",
}
"""What a container asks for, by a word for the name of a test."""
CLAIMS = frozenset({"claim", "unnamed", "second", "group", "unguarded-claim", "unguarded-unnamed", "resource-unnamed"})
RESOURCES = frozenset({"share", "resource"})
RUNTIMES = {
    "containerd-1.7": "containerd 1.7",
    "containerd-2.0": "containerd 2.0",
    "containerd-2.1": "containerd 2.1",
    "containerd-2.3": "containerd 2.3",
    "containerd-2.4": "containerd 2.4",
    "cri-o-1.36": "CRI-O 1.36",
    "podman-bookworm-runc": "podman 4.3 of Debian 12 with runc",
    "podman-bookworm-crun": "podman 4.3 of Debian 12 with crun",
    "podman-trixie-runc": "podman 5.4 of Debian 13 with runc",
    "podman-trixie-crun": "podman 5.4 of Debian 13 with crun",
    "podman-forky-runc": "podman 5.8 of Debian forky with runc",
    "podman-forky-crun": "podman 5.8 of Debian forky with crun",
    "docker-forky": "Docker 28.5 of Debian forky",
}
"""Runtimes that have outcomes, by the names of their files."""
COMPLETE, PLAIN, REFUSED = "complete", "runs", "refused"
_ENGINES = ("podman-", "docker-")
_OUR_CODE = re.compile(r"nri-rdma: ([A-Z]+(?:-[A-Z]+)*): ")


def why_impossible(runtime: str, situation: str, ask: str) -> str:
    """Return why there is no such container, "" where there can be one."""
    if runtime.startswith(_ENGINES):
        return _why_not_without_kubernetes(situation, ask)
    if situation == "never" and ask in RESOURCES:
        return "the kubelet has no such resource before a daemon has registered it: the pod is not placed here"
    if situation == "never" and ask in CLAIMS:
        return "nobody has published the devices or registered the driver: the pod is not placed here"
    if situation == "woken" and runtime.startswith("cri-o-"):
        return "CRI-O runs the guard's hook within CreateContainer, so nothing lies between the two"
    return ""


def _why_not_without_kubernetes(situation: str, ask: str) -> str:
    if ask == "unguarded":
        return "what gives a container of podman or Docker its devices also refuses it: there is no guard beside it"
    if ask in RESOURCES or ask in CLAIMS:
        return "resources and claims are allocated by a kubelet, and there is none"
    if situation in {"between", "in-sandbox"}:
        return "a container of podman and Docker has no sandbox that is started before it"
    if situation == "in-container" and ask == "nothing":
        return "the daemon is not asked for a container that asks for nothing, so that it cannot be killed meanwhile"
    if situation == "woken":
        return "a container of podman and Docker is refused as soon as the daemon is late, before that can go on"
    return ""


def given(missing: Collection[str], wanted: int) -> str:
    """Return the outcome of a container that runs, by what it lacks of the `wanted` things that it asked for."""
    if not missing:
        return COMPLETE
    return "**starts bare**" if len(missing) == wanted else f"**starts without {', '.join(sorted(missing))}**"


def refused(text: str, log: str = "") -> str:
    """Return the outcome of a container that does not start, by the text that the user sees, and the system's log."""
    if found := _OUR_CODE.search(text):
        return f"{REFUSED}: {found[1]}"
    if found := _OUR_CODE.search(log):
        return f"{REFUSED}: {found[1]} in the system's log"
    return f"{REFUSED} **without our sentence**: {text}"


def record(runtime: str, situation: str, row: Mapping[str, str]) -> None:
    """Keep outcomes by what was asked; one test at a time writes the file of a runtime."""
    file = BUILD / f"outcomes-{runtime}.json"
    BUILD.mkdir(exist_ok=True)
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[situation] = dict(row)
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(kept, indent=1))
    beside.rename(file)


def recorded(folder: Path = BUILD) -> dict[str, dict[str, dict[str, str]]]:
    """Return all outcomes that were kept: by runtime, situation and ask."""
    return {
        file.stem.removeprefix("outcomes-"): json.loads(file.read_text())
        for file in sorted(folder.glob("outcomes-*.json"))
    }
