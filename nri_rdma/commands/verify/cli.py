"""`nri-rdma verify`: tests whether RDMA works in this container, and between two containers."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias  # Any: JSON documents, and flags

import click

from nri_rdma.commands.common.options import asking_options, output_option
from nri_rdma.commands.common.screen import Screen, TextTable, print_json
from nri_rdma.config.settings import Settings

if TYPE_CHECKING:
    from nri_rdma.commands.verify.checks import CheckedPort
    from nri_rdma.commands.verify.given import GivenPorts
    from nri_rdma.commands.verify.measured_pairs import MeasuredPair, Own
    from nri_rdma.model.gpudirect import GpuDirect

Addresses: TypeAlias = tuple[IPv4Address | IPv6Address, ...]

DOCUMENT_VERSION = 1
EXIT_FAILED = 1
_MIB = 1 << 20


@click.command()
@asking_options("sysfs_root", "dev_root", "verbs_python")
@click.argument("devices", nargs=-1, metavar="[DEVICE]...")
@click.option("--gid-index", type=click.IntRange(0, 255), metavar="N", help="Use this entry of the port's GID table.")
@click.option(
    "--roce-version", type=click.IntRange(1, 2), default=2, show_default=True, help="Use a GID of this RoCE version."
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 3600),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each port, and for each step of a pair.",
)
@click.option("--server", is_flag=True, help="Wait until another container connects and measures.")
@click.option("--connect", "host", metavar="HOST", help="Measure to the container that waits at this address.")
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    envvar="POD_IP",
    show_envvar=True,
    metavar="ADDRESS",
    help="With --server: the address to listen on.",
)
@click.option(
    "--port", "tcp_port", type=click.IntRange(0, 65535), default=18516, show_default=True, help="The server's TCP port."
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(1, 86400),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the other side.",
)
@click.option(
    "--pairs",
    type=click.Choice(["all", "same"]),
    default="all",
    show_default=True,
    help="With --connect: measure each port with each, or only ports at the same position.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Messages per pair for latency.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 8 * _MIB),
    default=_MIB,
    show_default=True,
    help="Size of a message for bandwidth, in bytes.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 60),
    default=0.5,
    show_default=True,
    help="How long to measure a pair's bandwidth.",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw the pairs as a matrix."
)
@output_option
def verify(
    settings: Settings,
    devices: tuple[str, ...],
    gid_index: int | None,
    roce_version: int,
    timeout: float,
    output: str,
    **pairs: Any,
) -> None:
    """Test whether RDMA works here, and say why not.

    Without arguments the command tests the devices of this container: those in its variables RDMA_DEVICES_*, or else
    those whose nodes are in /dev/infiniband. It opens each device, checks its port and GID, registers as much memory
    as RLIMIT_MEMLOCK allows, and moves 1 MiB over a queue pair that is connected to itself.

    With --server in one container and --connect in another, it measures latency and bandwidth between their devices by
    RDMA writes. Any program that reaches the TCP port can connect: listen on an address that only pods reach.

    Ends with 1 if a port or a pair does not work, and prints the likely reason. Needs the distribution's Python with
    its pyverbs (Debian: python3-pyverbs), which our image contains.

    \b
    Example:
      nri-rdma verify
      nri-rdma verify mlx5_0 --gid-index 3 -o json
      nri-rdma verify --server --bind 10.0.0.2
      nri-rdma verify --connect 10.0.0.2 --svg pairs.svg
    """
    from nri_rdma.commands.verify.given import addresses, given

    if pairs["server"] and pairs["host"]:
        raise click.UsageError("--server and --connect are for different containers")
    if pairs["svg"] and not (pairs["server"] or pairs["host"]):
        raise click.UsageError("--svg is for --server and --connect")
    found = given(
        *(devices, os.environ, settings.sysfs_root, settings.dev_root), gid_index=gid_index, roce_version=roce_version
    )
    if pairs["server"] or pairs["host"]:
        from nri_rdma.commands.verify.measured_pairs import Own

        own = Own(
            ports=found.ports,
            addresses=addresses(),
            python=settings.verbs_python,
            wait_s=pairs["wait_s"],
            pair_s=timeout,
        )
        works = _measure(own, pairs, output)
    else:
        works = _check(settings, found, addresses(), timeout, output)
    if not works:
        click.get_current_context().exit(EXIT_FAILED)


def _check(settings: Settings, found: GivenPorts, addresses: Addresses, timeout: float, output: str) -> bool:
    from nri_rdma.commands.verify.checks import check
    from nri_rdma.commands.verify.given import memlock, memory_max
    from nri_rdma.commands.verify.gpu_memory import gpudirect_here
    from nri_rdma.decide.proof import bytes_to_register

    locked = memlock()
    size = bytes_to_register(locked, memory_max(Path("/proc"), settings.cgroup_root))
    checked = list(check(found.ports, addresses, size, settings.verbs_python, timeout))
    gpus = gpudirect_here(settings, {it.device for it in found.ports})
    if output == "json":
        print_json(_document(found, locked, checked, gpus))
    else:
        _show(Screen(), found, locked, checked)
        _show_gpus(Screen(), gpus)
    return all(it.error is None for it in checked)


def _measure(own: Own, pairs: dict[str, Any], output: str) -> bool:
    from nri_rdma.commands.verify.measured_pairs import call, serve
    from nri_rdma.commands.verify.pairs_output import document, matrix, show
    from nri_rdma.errors import ProofError

    if pairs["server"]:
        results = serve(own, pairs["bind"], pairs["tcp_port"], _tell_listening)
    else:
        results = call(
            *(own, pairs["host"], pairs["tcp_port"]),
            pairs=pairs["pairs"],
            iterations=pairs["iterations"],
            message_bytes=pairs["size"],
            seconds=pairs["seconds"],
        )
    measured: list[MeasuredPair] = []
    broken: ProofError | None = None
    try:
        measured.extend(results)  # keeps what came before an error
    except ProofError as error:
        if not measured:
            raise
        broken = error
    if output == "json":
        print_json(document(measured, is_whole=broken is None))
    else:
        show(Screen(), measured)
    if pairs["svg"]:
        pairs["svg"].write_text(matrix(measured))
    if broken is not None:
        raise broken
    return bool(measured) and all(it.error is None for it in measured)


def _tell_listening(address: str, port: int) -> None:
    only = " (this machine alone; --bind names another address)" if ip_address(address).is_loopback else ""
    click.echo(f"waiting for nri-rdma verify --connect at {address}, TCP port {port}{only}", err=True)


def _show(screen: Screen, found: GivenPorts, locked: int | None, checked: list[CheckedPort]) -> None:
    screen.table(
        TextTable(
            headings=("DEVICE", "PORT", "TRANSPORT", "GID", "REGISTERED", "MOVED", "TIME", "RESULT"),
            rows=tuple(map(_row, checked)),
        )
    )
    screen.line()
    for it in checked:
        if it.error:
            screen.line(str(it.error))
    limit = "unlimited" if locked is None else f"{locked} bytes"
    works = sum(it.error is None for it in checked)
    screen.line(
        f"RDMA works on {works} of {len(checked)} port{'' if len(checked) == 1 else 's'} (devices from {found.origin};"
        f" RLIMIT_MEMLOCK {limit}).",
        bold=True,
    )


def _show_gpus(screen: Screen, gpus: tuple[GpuDirect, ...]) -> None:
    from nri_rdma.decide.gpudirect import fix, sentence

    for it in gpus:
        step = fix(it)
        screen.line(f"GPUDirect RDMA: {sentence(it)}.{f' Next: {step}.' if step else ''}")


def _row(checked: CheckedPort) -> tuple[str, ...]:
    told, port = checked.told, checked.port
    gid = told.get("gid")
    return (
        port.device,
        str(port.port),
        told.get("transport") or "-",
        f"{gid['index']} {gid['value']} ({gid['type']})" if gid else "-",
        size_words(told.get("registered_bytes", 0)),
        size_words(told.get("transferred_bytes", 0)),
        f"{sum(told['ms'].values()):.0f} ms" if told else "-",
        str(checked.error.code) if checked.error else "ok",
    )


def size_words(size: int) -> str:
    """Return a number of bytes in MiB or KiB; "-" for 0."""
    if not size:
        return "-"
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size // 1024} KiB"


def _document(
    found: GivenPorts, locked: int | None, checked: list[CheckedPort], gpus: tuple[GpuDirect, ...]
) -> dict[str, Any]:
    from nri_rdma.decide.gpudirect import fix, sentence

    return {
        "version": DOCUMENT_VERSION,
        "origin": found.origin,
        "memlock_bytes": locked,
        "works": all(it.error is None for it in checked),
        "ports": [_port_document(it) for it in checked],
        "gpudirect": [
            {"maker": it.maker, "verdict": str(it.verdict), "found": sentence(it), "next": fix(it)} for it in gpus
        ],
    }


def _port_document(checked: CheckedPort) -> dict[str, Any]:
    port, error, told = checked.port, checked.error, checked.told
    document = {"device": port.device, "port": port.port, **{key: it for key, it in told.items() if key != "problem"}}
    if error is None:
        return {**document, "problem": None}
    problem = told.get("problem", {"step": None, "errno": None, "text": ""})
    return {**document, "problem": {"code": error.code, "what": error.what, "next": error.hint, **problem}}
