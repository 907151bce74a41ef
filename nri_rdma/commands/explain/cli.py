"""`nri-rdma explain`: shows what a pod would get on this node, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: JSON documents and manifests

import click

from nri_rdma.commands.common.options import asking_options, output_option, snapshot_option
from nri_rdma.commands.common.screen import Screen, TextTable, print_json
from nri_rdma.config.settings import Settings
from nri_rdma.decide.port_gids import INDEX
from nri_rdma.errors import ErrorCode, NriRdmaError, SettingError

if TYPE_CHECKING:
    from nri_rdma.commands.explain.claims_of_pod import ClaimOfPod
    from nri_rdma.commands.explain.explanation import Candidate, ExplainedContainer, ExplainedRequest, Explanation
    from nri_rdma.commands.explain.gather import FactsSource
    from nri_rdma.commands.explain.prepared_claims import ExplainedClaim
    from nri_rdma.text.manifest import PodManifest

EXIT_REFUSED = 1


@click.command()
@click.argument(
    "manifest", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option(
    "--podman",
    "podman_container",
    metavar="CONTAINER",
    help="Instead of MANIFEST: a container of podman, by its name or id. What its annotations ask for is shown.",
)
@snapshot_option
@click.option(
    "--cdi-device",
    "cdi_devices",
    multiple=True,
    metavar="CONTAINER=NAME",
    help="A CDI device that a container would have (main=vendor.example.com/class=name), as its driver prepares it.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="CONTAINER=ID[,ID]",
    help="The GPUs that the kubelet would give to a container: UUIDs, indexes or PCI addresses.",
)
@output_option
@asking_options(
    "sysfs_root",
    "dev_root",
    "proc_root",
    "cgroup_root",
    "node_ip",
    "api_server",
    "service_range",
    "allow_default_pool",
    "memlock",
    "annotation_prefix",
    "cdi_dirs",
    "state_dir",
    "control_socket",
    problem="problem",
)
@click.pass_context
def explain(
    context: click.Context,
    manifest: Path | None,
    podman_container: str | None,
    settings: Settings,
    problem: SettingError | None,
    snapshot: Path | None,
    cdi_devices: tuple[str, ...],
    gpus: tuple[str, ...],
    output: str,
) -> None:
    """Show what a pod would get on this node, and why.

    It changes nothing and needs no root. MANIFEST is a Pod or an object with pod templates: a Deployment, a Job, an
    MPIJob, a RayCluster (- reads stdin). If a daemon runs, its settings are used, and the devices that pods hold now
    are taken. A manifest says how many GPUs a container gets, but not which; --gpu names them. Without --gpu, the
    result of a strict request is unknown. For claims, the parameters are shown that result from the claim and its
    device class. Ends with 1 if a pod or a claim would be refused.

    \b
    Example:
      nri-rdma explain pod.yaml
      nri-rdma explain pod.yaml --allow-default-pool --sysfs-root ./node/sys --dev-root ./node/dev
      nri-rdma explain pod.yaml --snapshot node.json
      nri-rdma explain pod.yaml --cdi-device trainer=dra.example.com/nic=claim-7f3
      nri-rdma explain pod.yaml --gpu trainer=0,1
      nri-rdma explain --podman trainer
    """
    if manifest is not None and podman_container is None:
        pods, unread, documents = _read_manifest(manifest)
    elif manifest is None and podman_container is not None:
        pods, unread, documents = (_container_of_podman(podman_container),), (), ()
    else:
        raise click.UsageError("Give a MANIFEST, or --podman CONTAINER.")
    from nri_rdma.commands.explain.claims_of_pod import claims_of_pod
    from nri_rdma.commands.explain.explanation import explain as explain_pod
    from nri_rdma.commands.explain.gather import gather
    from nri_rdma.commands.explain.prepared_claims import claim_lines, explain_claims

    source = gather(settings, snapshot, problem)
    if podman_container is not None:
        source = replace(source, facts=replace(source.facts, pods_have_networks=False))
    if cdi_devices:
        from nri_rdma.commands.explain.with_cdi import with_cdi_devices

        source = with_cdi_devices(source, cdi_devices, settings.cdi_dirs, pods)
    if gpus:
        from nri_rdma.commands.explain.with_gpus import with_gpus

        source = with_gpus(source, gpus, pods)
    if source.claims and any(container.claims for pod in pods for container in pod.containers):
        source = replace(source, sentences=(*source.sentences, source.claims))
    claims = explain_claims(documents, source.facts.node, source.facts.policy)
    told = [
        ToldPod(explanation=explain_pod(pod, source.facts), claims=claims_of_pod(pod, documents, claims, source.facts))
        for pod in pods
    ]
    explanations = [it.explanation for it in told]
    if output == "json":
        print_json(_document(told, claims, source, unread))
        _report_refusals(explanations)
    else:
        sentences = (*source.sentences, *(f"Skipped: {it}." for it in unread), *claim_lines(claims))
        _show(told, sentences, source)
    if any(item.refusal is not None for item in explanations) or any(item.refusal is not None for item in claims):
        context.exit(EXIT_REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPod:
    """A pod with the explanation of the requests in its annotations and resources, and of its claims."""

    explanation: Explanation
    claims: tuple[ClaimOfPod, ...]

    @property
    def claimed(self) -> int | None:
        """The number of our devices that the pod's claims bring; None if it is not known."""
        known = [it.devices for it in self.claims if it.is_ours]
        return None if None in known else sum(it for it in known if it is not None)

    @property
    def has_claims(self) -> bool:
        """Whether any claim of the pod brings our devices."""
        return any(it.is_ours for it in self.claims)

    @property
    def is_allocated(self) -> bool:
        """Whether all claims of the pod for our devices are allocated, so that the devices are known."""
        return all(it.allocated is not None for it in self.claims if it.is_ours)


def _report_refusals(explanations: list[Explanation]) -> None:
    """Print the refusals on stderr, because the JSON document on stdout is for programs."""
    for item in explanations:
        if item.refusal is not None:
            whose = f"{item.kind} {item.pod}: " if len(explanations) > 1 else ""
            click.echo(f"{whose}{item.refusal}", err=True)


# The manifest


def _read_manifest(path: Path) -> tuple[tuple[PodManifest, ...], tuple[str, ...], tuple[object, ...]]:
    """Return the pods of the manifest, a sentence for each object that contains no pod, and all documents. Raises
    SettingError if the manifest cannot be parsed, or has neither a pod nor a claim."""
    from nri_rdma.text.claim_manifest import is_claim
    from nri_rdma.text.manifest import read_pods
    from nri_rdma.text.templates import items_of, why_unread

    documents = tuple(_documents(path))
    pods = tuple(pod for place, document in documents for pod in read_pods(document, place))
    unread = tuple(
        why
        for _, document in documents
        for item, _ in items_of(document)
        if (why := why_unread(item)) and not (isinstance(item, dict) and is_claim(item))
    )
    has_claim = any(
        isinstance(item, dict) and is_claim(item) for _, document in documents for item, _ in items_of(document)
    )
    if not pods and not has_claim:
        what = f"there is no pod in the manifest{f': {unread[0]}' if unread else ''}"
        hint = "give a Pod, an object with a pod template such as a Deployment or a Job, or a resource claim"
        raise SettingError(ErrorCode.SETTING, what, where=str(path), hint=hint)
    return pods, unread, tuple(document for _, document in documents)


def _container_of_podman(name: str) -> PodManifest:
    """Return the podman container in the form of a pod, as the daemon handles it. Raises NriRdmaError if podman does
    not know the container or cannot be asked."""
    from nri_rdma.doors.oci.containers import NAMESPACE, SHORT
    from nri_rdma.host.podman_command import container
    from nri_rdma.text.manifest import read_pods

    found = container(name)
    short = found.id[:SHORT]
    document = {
        "kind": "Pod",
        "metadata": {"name": short, "namespace": NAMESPACE, "annotations": dict(found.annotations)},
        "spec": {"containers": [{"name": short}], "hostNetwork": found.has_host_network},
    }
    (pod,) = read_pods(document, f"podman inspect {name}")
    return pod


def _documents(path: Path) -> Iterator[tuple[str, object]]:
    from nri_rdma.text.placed_yaml import MAX_BYTES, Placed, read_documents

    with click.open_file(str(path), "rb") as file:
        data = file.read(MAX_BYTES + 1)
    for document in read_documents(data):
        if not isinstance(document, Placed):
            where = ":".join(str(part) for part in (path, document.line, document.column) if part)
            what = f"the manifest cannot be read: {document.what}"
            raise SettingError(document.code, what, where=where, hint=document.hint) from document
        yield f"{path.name}:{document.place_of(()).line}", document.value


# For people


def _show(every: list[ToldPod], sentences: tuple[str, ...], source: FactsSource) -> None:
    screen = Screen()
    for sentence in sentences:
        screen.line(sentence)
    for told in every:
        screen.line()
        _show_one(screen, told, source)


def _show_one(screen: Screen, told: ToldPod, source: FactsSource) -> None:
    from nri_rdma.commands.explain.claims_of_pod import claim_sentences

    item = told.explanation
    screen.line(f"{item.kind} {item.pod}: {_result(told)}", bold=True)
    if item.refusal is not None:
        screen.raw(str(item.refusal))  # on one line, for grep
    if item.holds:
        screen.line(f"It holds {', '.join(item.holds)} now, and would first give that back.")
    for note in item.notes:
        screen.line(note)
    for claim in told.claims:
        for sentence in claim_sentences(claim, source.facts):
            screen.line(sentence)
    for request in (it for it in item.requests if it.candidates):  # a machine without devices has none
        screen.line()
        screen.table(_request_table(request))
    if item.netdevs:
        screen.line()
        screen.table(_moves_table(item))
        for line in _staying(item):
            screen.line(line)
    for container in item.containers:
        if not item.requests and not container.resources and not container.claims:
            continue  # a pod that asks for nothing is told so above
        screen.line()
        screen.line(f"Container {container.name}", bold=True)
        screen.facts(tuple(_container_facts(container, told.claims, source.memlock_reason)), indent=2)


def _result(told: ToldPod) -> str:
    item = told.explanation
    if item.refusal is not None:
        return f"refused, {item.refusal.code}"
    for claim in told.claims:
        if claim.refused is not None and claim.refused.refusal is not None:
            return f"refused by its claim {claim.claim.name}, {claim.refused.refusal.code}"
    if item.undetermined:
        return "depends on the CPUs that the kubelet gives it" if item.awaits_cpus else "cannot be told without --gpu"
    return _gotten(told)


def _gotten(told: ToldPod) -> str:
    requests = told.explanation.requests
    given = sum(len(request.devices) for request in requests)
    by_claim = f"{'devices' if told.claimed is None else _devices(told.claimed)} by claim"
    if requests:
        return f"gets {_devices(given)}{f', and {by_claim}' if told.has_claims else ''}"
    if told.has_claims:
        return f"gets {by_claim}{'' if told.is_allocated else ', and the scheduler decides which'}"
    if told.claims:
        return "asks for nothing itself, and none of its claims is known to be for devices of this node"
    return "asks for nothing and gets nothing"


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _request_table(item: ExplainedRequest) -> TextTable:
    origin = f"CDI device {item.cdi_device}" if item.cdi_device else f"pool {item.pool}"
    return TextTable(
        title=f"Request {item.name}: {item.count} of {origin}, mode {item.mode}"
        f"{f', isolation {item.isolation}' if item.isolation else ''}{_gpu_words(item)}"
        f"{', proven before its containers start, which needs the guard' if item.prove else ''} ({item.where})",
        headings=("DEVICE", "PCI", "NUMA", "STATE", "", "WHY"),
        rows=tuple(
            (
                candidate.device,
                candidate.pci or "-",
                "-" if candidate.numa_node is None else str(candidate.numa_node),
                candidate.state or "-",
                _verdict(candidate),
                candidate.why,
            )
            for candidate in item.candidates
        ),
        indent=2,
    )


def _gpu_words(request: ExplainedRequest) -> str:
    told = f", told by {request.gpus_from}" if request.gpus_from else ""
    known = f", for GPU {', '.join(request.gpus)}{told}" if request.gpus else ""
    return f"{known}; {request.gpus_problem}" if request.gpus_problem else known


def _verdict(candidate: Candidate) -> str:
    if candidate.given:
        return "GIVEN"
    return "left" if candidate.free else "no"


def _moves_table(item: Explanation) -> TextTable:
    return TextTable(
        title="Netdevs that move into the pod",
        headings=("DEVICE", "ON THE HOST", "IN THE POD", "MTU", "ADDRESSES", "TAKES ALONG"),
        rows=tuple(
            (
                netdev.device,
                netdev.host_name,
                netdev.pod_name,
                str(netdev.mtu),
                "as on the host" if "addresses" in netdev.takes else ", ".join(netdev.addresses) or "none",
                ", ".join(netdev.takes) or "nothing",
            )
            for netdev in item.netdevs
        ),
        indent=2,
    )


def _staying(item: Explanation) -> Iterator[str]:
    """Yield sentences about the configuration of the netdevs: what stays on the host, and what depends on the pod."""
    for netdev in item.netdevs:
        for left_out in netdev.left_out or ():
            yield f"  {netdev.host_name} leaves on the host: {left_out}"
    takes = any({"routes", "addresses"} & {*it.takes} for it in item.netdevs)
    if takes and all(it.left_out is None for it in item.netdevs):
        yield "  What they leave on the host is not known: this machine does not show these netdevs."
    elif takes:
        yield "  Routes that cover the pod's own address or gateway stay, too: see `nri-rdma status` once the pod runs."


def _container_facts(
    item: ExplainedContainer, claims: tuple[ClaimOfPod, ...], memlock_reason: str
) -> Iterator[tuple[str, str]]:
    if item.privileged:
        yield "note", "it is privileged: it sees every device of the host, whatever it is given"
    ours = [it.claim.name for it in claims if it.gives(item.name)]
    yield from _from_others(item, ours)
    if not item.requests:
        yield "gets", "what its claims bring" if ours or item.claims else "nothing"
        return
    yield "requests", ", ".join(item.requests)
    for number, char in enumerate(item.char_devices):
        yield ("" if number else "nodes"), f"{char.path}  {char.major}:{char.minor}  mode {char.mode}"
    for number, (name, value) in enumerate(item.env.items()):
        yield ("" if number else "env"), f'{name}="{value}"'
    if item.chooses_gid:
        yield "GID", f"chosen when the pod has its devices; {INDEX} and others follow from it, see `nri-rdma status`"
    if item.kept_env:
        yield "env kept", f"{', '.join(item.kept_env)}: the container sets it itself"
    from nri_rdma.commands.explain.gather import AUTOMATIC_MEMLOCK

    because = "asked by the pod" if item.asks_memlock else memlock_reason
    is_open = item.memlock is None and because == AUTOMATIC_MEMLOCK
    yield "memlock", because if is_open else f"{_memlock(item.memlock)} ({because})"
    for file, lines in item.unified.items():
        for number, line in enumerate(lines.splitlines()):
            yield ("" if number else file), line


def _from_others(item: ExplainedContainer, ours: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a label and a text about what the container gets by resources, claims and --gpu instead of
    annotations. `ours` are the claims that nri-rdma prepares for the container."""
    if item.gpus:
        yield "GPUs", f"{', '.join(item.gpus)}, as --gpu says"
    for name, count in item.resources.items():
        if name in item.shares:
            yield "resource", f"{name}: {count}, shares of this node that the kubelet counts"
        elif name in item.counted:
            yield "resource", f"{name}: {count}, which the scheduler counts; no device plugin gives it"
        elif "rdma" in name:
            others = "a DeviceClass with that extendedResourceName, or another device plugin, may"
            hint = f"{others}, else write it as the resource of a pool with door = resource"
            yield "resource", f"{name}: {count}, which no pool of this node has, so that nri-rdma gives nothing; {hint}"
        else:
            yield "resource", f"{name}: {count}, which its device plugin gives"
    for name in ours:
        yield "claim", f"{name}, which nri-rdma prepares"
    for name in (it for it in item.claims if it not in ours):
        hint = f"--cdi-device {item.name}=VENDOR/CLASS=NAME says what its CDI device would do here"
        yield "claim", f"{name}, which its DRA driver prepares; {hint}"


def _memlock(value: int | str | None) -> str:
    return "as the runtime has it" if value is None else f"{value} bytes" if isinstance(value, int) else value


# For programs


def _document(
    every: list[ToldPod], claims: tuple[ExplainedClaim, ...], source: FactsSource, unread: tuple[str, ...]
) -> dict[str, Any]:
    import msgspec

    from nri_rdma.doors.control.node_document import DOCUMENT_VERSION

    def plain(value: object) -> Any:
        return msgspec.to_builtins(value, enc_hook=_refusal_document)

    return {
        "version": DOCUMENT_VERSION,
        "source": source.sentences,
        "skipped": unread,
        "pods": [
            {**plain(it.explanation), "claims": [_claim_document(claim, source) for claim in it.claims]} for it in every
        ],
        "claims": plain(claims),
    }


def _claim_document(claim: ClaimOfPod, source: FactsSource) -> dict[str, Any]:
    from nri_rdma.commands.explain.claims_of_pod import claim_sentences

    return {
        "name": claim.claim.name,
        "kind": claim.claim.kind,
        "object": claim.claim.object,
        "is_ours": claim.is_ours,
        "containers": claim.containers,
        "count": claim.devices,
        "allocated": claim.allocated,
        "sentences": tuple(claim_sentences(claim, source.facts)),
    }


def _refusal_document(error: NriRdmaError) -> dict[str, str]:
    return {"code": str(error.code), "what": error.what, "where": error.where, "hint": error.hint, "text": str(error)}
