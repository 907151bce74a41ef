"""What the demo tells: four pods, what each asked for and what its containers really see, one trace, the way back.

Nothing here asks the product what it did, except where its own commands are shown. What a container sees is asked
inside it; what it should see comes from the description, from the tree's `dev` files and from the host's own `ip`.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from time import monotonic
from types import FrameType

from tests.rig import cache, hoststate
from tests.rig.containerd import Containerd
from tests.rig.cri import CriError, Sandbox
from tests.rig.daemon import MEMLOCK, Daemon
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.demo_page import WIDTH, Page
from tests.rig.expect import Seen, described_root, host_link, look, real_mode, tree_number
from tests.rig.fabric import Fabric, FabricError
from tests.rig.node import Node, load

_KEY = "rdma.noderesource.dev/pod"
_WORK = cache.PROJECT / "build/demo"
_OURS = ("NCCL_", "UCX_", "RDMA_")
_TABLE = "7777"  # of the demo alone; its route goes with its link

_GPU = "0000:be:00.0"
_ALIGNED = f"""
- name: fabric
  mode: exclusive
  gpus: ["{_GPU}"]
  interface: {{mtu: 4200, addresses: [10.0.0.5/24]}}
"""
_TWO = """
- name: rails
  count: 2
  mode: exclusive
  containers: [trainer]
  interface: {addresses: [[10.0.0.1/24], [10.0.1.1/24]]}
"""
_IN_USE = """
- match: {device: mlx5_7}
  mode: exclusive
"""


class Stopped(BaseException):
    """Somebody wants the demo to end now."""


class Stop:
    """A signal ends the demo, but only where that is allowed: never while something is half made or half removed."""

    def __init__(self) -> None:
        self._asked = False
        self._allowed = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, a signal raises Stopped at once; one that came before does so here."""
        self._allowed = True
        try:
            if self._asked:
                raise Stopped
            yield
        finally:
            self._allowed = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._allowed:
            self._allowed = False
            raise Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that runs. `node` is the description that is checked against."""

    page: Page
    node: Node
    fabric: Fabric
    containerd: Containerd
    daemon: Daemon
    before: hoststate.HostState


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a request should have given: the devices in order, and what was said about their interfaces."""

    name: str
    devices: Sequence[str]
    mtu: int | None = None
    addresses: Sequence[str] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Tells it on standard output; 0 when every check passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check-against", type=Path)
    against = parser.parse_args(arguments).check_against
    stop = Stop()
    os.environ["COLUMNS"] = str(WIDTH)  # for the commands that it shows
    page = Page(sys.stdout)
    runs: list[Path] = []
    node = Node.parse(against.read_text()) if against else load("eight")
    start = hoststate.take()
    try:
        with _surviving(page):
            tell(page, node, stop, runs)
        look_at_the_end(page, start, runs)
    except Stopped:
        page.text("Stopped: its pods, links, namespaces, mounts and processes are gone.")
        return 130
    except BrokenPipeError:
        # Nobody reads any more. Everything is cleared by now; keep Python's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    page.summary(str(_WORK.relative_to(cache.PROJECT)))
    return 1 if page.failed else 0


def tell(page: Page, node: Node, stop: Stop, runs: list[Path]) -> None:
    """The whole story; at its end, however it comes, everything it made is gone. `runs` gets the folders it used."""
    page.text(
        f"This machine stands in for a server with {node.summary}. The adapters are described in a file; their links "
        "(veth) and device nodes (mknod) are real, and so are containerd, the pods and the daemon. Four pods come, "
        "each asks for something else; beside what it asked for you see what its containers got."
    )
    page.heading("Getting ready")
    with ExitStack() as stack, _announcing(page):
        with page.progress("the node: links, device nodes, a sysfs tree"):
            fabric = stack.enter_context(Fabric(load("eight")))
            runs.append(fabric.run)
        for old in (_WORK / "containerd.log", _WORK / "nri-rdma.log"):
            old.unlink(missing_ok=True)
        containerd = Containerd(_WORK, release=cache.CONTAINERD_2_1)
        runs.append(containerd.run)
        stack.callback(containerd.stop)
        with page.progress("a private containerd with NRI"), stop.allowed():
            containerd.start()
        daemon = Daemon(containerd, fabric, extra=("--allow-default-pool",))
        stack.callback(daemon.stop)
        stack.callback(_delete_pods, containerd)
        with page.progress("the daemon: nri-rdma run --allow-default-pool"):
            daemon.start_process()
            with stop.allowed():
                daemon.wait_synchronized()
        stage = Stage(
            page=page, node=node, fabric=fabric, containerd=containerd, daemon=daemon, before=hoststate.take()
        )
        page.text(
            "--allow-default-pool opens the pool `default` for requests with `mode: exclusive`: a pod may take a whole "
            "adapter away from its host. That is on purpose, and only here; without it the pool only shares."
        )
        with stop.allowed():
            for part in (_aligned, _two, _nothing, _refused, _trace, _status, _give_back):
                with _surviving(page):
                    part(stage)
        page.heading("The end of everything else")
        with page.progress("stopping the daemon and containerd, removing the node"):
            stack.close()


def look_at_the_end(page: Page, start: hoststate.HostState, runs: Sequence[Path]) -> None:
    """After everything has ended: the host is the one we came to."""
    page.table("against the start")
    _check_host(page, "the host's network", start)
    for label, found in (("folders", _folders(runs)), ("mounts", _mounts(runs)), ("processes", _processes(runs))):
        page.check(f"{label} left", "none", f"{len(found)}: {found[0]}" if found else "none")


def _folders(runs: Sequence[Path]) -> list[str]:
    return [str(run) for run in runs if run.exists()]


def _mounts(runs: Sequence[Path]) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if any(point.startswith(f"{run}/") for run in runs)]


def _processes(runs: Sequence[Path]) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
            found += [f"{process.name} {words}" for run in runs if str(run) in words]
    return found


def _aligned(stage: Stage) -> None:
    stage.page.heading("1. One adapter, next to the pod's GPU")
    pod = _run_pod(stage, "aligned", _ALIGNED)
    seen = look(stage.containerd.cri, stage.containerd.cri.run_container(pod, "main"))
    stage.page.text(
        "`should be` is from sysfs and the node's description, `is` from inside the container; neither is what "
        "nri-rdma says of itself."
    )
    stage.page.table("container main")
    _check_grant(stage, seen, Grant(name="FABRIC", devices=["mlx5_5"], mtu=4200, addresses=["10.0.0.5/24"]))
    root = described_root(stage.node, _GPU)
    stage.page.check("PCI root: GPU, NIC", root, _root_of_mac(stage.node, seen.macs["rdma0"]))
    stage.page.check("rail5 on the host", "gone", _on_host("rail5"))


def _two(stage: Stage) -> None:
    stage.page.heading("2. Two adapters, for one of two containers")
    pod = _run_pod(stage, "two", _TWO)
    cri = stage.containerd.cri
    trainer, sidecar = cri.run_container(pod, "trainer"), cri.run_container(pod, "sidecar")
    stage.page.table("container trainer")
    grant = Grant(name="RAILS", devices=["mlx5_4", "mlx5_6"], addresses=["10.0.0.1/24", "10.0.1.1/24"])
    _check_grant(stage, look(cri, trainer), grant)
    answer = cri.exec(trainer, ["ping", "-c", "1", "-W", "5", "10.0.0.5"])
    replies = [line.split(":")[0] for line in answer.stdout.splitlines() if "bytes from" in line]
    stage.page.check("ping to the 1st pod", "64 bytes from 10.0.0.5", " ".join(replies) or answer.stderr or "nothing")
    stage.page.table("container sidecar")
    seen = look(cri, sidecar)
    _check_untouched(stage, seen)
    stage.page.check("links (the pod's)", "eth0 lo rdma0 rdma1", _names(seen.macs))


def _nothing(stage: Stage) -> None:
    stage.page.heading("3. A pod that asks for nothing")
    pod = _run_pod(stage, "plain", "")
    seen = look(stage.containerd.cri, stage.containerd.cri.run_container(pod, "main"))
    stage.page.table("container main")
    _check_untouched(stage, seen)
    stage.page.check("links", "eth0 lo", _names(seen.macs))


def _refused(stage: Stage) -> None:
    page = stage.page
    page.heading("4. A device that is in use is refused")
    page.text(f"The host routes over rail7: a rule sends marked packets to a default route in table {_TABLE}.")
    _ip("rule", "add", "fwmark", _TABLE, "table", _TABLE)
    _ip("route", "add", "default", "dev", "rail7", "table", _TABLE)
    try:
        text = _refusal(stage)
    finally:
        _ip("route", "delete", "default", "dev", "rail7", "table", _TABLE)
        _ip("rule", "delete", "fwmark", _TABLE, "table", _TABLE)
    page.text("It is not started. What the kubelet gets as the error of RunPodSandbox:")
    page.quote(text)
    page.table("the error", expected="must hold", seen="holds")
    for label, words in (
        ("its code", "DEVICE-IN-USE"),
        ("the link", "rail7"),
        ("the reason", "default route"),
        ("what to do", "Next:"),
    ):
        page.check(label, words, words if words in text else "nothing of it")
    page.table("afterwards")
    page.check("left of the pod", "none", _names(it.name for it in _pods(stage) if it.name == "busy"))
    page.check("rail7 on the host", "there", _on_host("rail7"))
    page.text("Now the route is removed, and the same request is sent again.")
    pod = _run_pod(stage, "busy", _IN_USE, show=False)
    seen = look(stage.containerd.cri, stage.containerd.cri.run_container(pod, "main"))
    page.table("container main")
    page.check("rdma0 is rail7", _mac(stage.node, "mlx5_7"), seen.macs.get("rdma0", "no rdma0"))


def _trace(stage: Stage) -> None:
    stage.page.heading("What nri-rdma did for the first pod, step by step")
    text = _show(stage, "trace", "aligned")
    stage.page.table("the trace", expected="must show", seen="shows")
    for label, words in (("the runtime's calls", ("RunPodSandbox", "CreateContainer")), ("steps", ("place", "attach"))):
        stage.page.check(label, " ".join(words), " ".join(it for it in words if it in text) or "neither")


def _status(stage: Stage) -> None:
    stage.page.heading("What it holds now")
    rows = _show(stage, "status").splitlines()
    stage.page.table("the pods in it", expected="must show", seen="shows")
    for pod, devices in (("aligned", "mlx5_5"), ("two", "mlx5_4, mlx5_6"), ("busy", "mlx5_7"), ("plain", "nothing")):
        row = next((it for it in rows if it.startswith(f"default/{pod} ")), "nothing")
        stage.page.check(f"default/{pod}", devices, devices if row.endswith(devices) else row)


def _give_back(stage: Stage) -> None:
    page = stage.page
    page.heading("Everything goes back")
    pods = _pods(stage)
    with page.progress(f"deleting the pods {_names(it.name for it in pods)}"):
        _delete_pods(stage.containerd)
    state = stage.before
    page.text(
        f"The host's network is compared with what it was before the pods: {_size(state)}; every field that `ip -d` "
        "shows except counters and lifetimes."
    )
    page.table("after the pods")
    _check_host(page, "the host's network", state)
    status = stage.daemon.status()
    page.check("pods still served", "0", str(len(status["sandboxes"])))
    page.check("namespaces held", "0", str(status["namespaces_held"]))
    page.text("Would the comparison notice? The MTU of rail0 is changed by hand, and put back.")
    _ip("link", "set", "rail0", "mtu", "8000")
    try:
        found = hoststate.difference(state, hoststate.take())
    finally:
        _ip("link", "set", "rail0", "mtu", str(stage.fabric.node.netdev("rail0").mtu))
    noticed = next((it for it in found if it.startswith("link rail0 ") and ": mtu " in it), "nothing")
    page.table("the comparison", expected="must say", seen="says")
    page.check("rail0, changed", "mtu was 9000, is 8000", noticed.rpartition(": ")[2])
    _check_host(page, "rail0, put back", state)


def _check_grant(stage: Stage, seen: Seen, grant: Grant) -> None:
    """Every node, link, variable and limit of a container against what stands behind them."""
    page, fabric, node = stage.page, stage.fabric, stage.node
    chars = [it.name for name in grant.devices if (it := node.device(name).uverbs) is not None] + ["rdma_cm"]
    for name in chars:
        expected = f"{tree_number(fabric, name)} mode {real_mode(fabric, name)}"
        page.check(name, expected, f"{seen.nodes[name]} mode {seen.modes[name]}" if name in seen.nodes else "none")
    page.check("other device nodes", "none", _names(set(seen.nodes) - set(chars)))
    links = [f"rdma{number}" for number in range(len(grant.devices))]
    for number, (link, device) in enumerate(zip(links, grant.devices, strict=True)):
        netdev = node.netdev_of(node.device(device))
        assert netdev is not None, f"{device} has no netdev"
        page.check(f"{link} is {netdev.name}", netdev.mac, seen.macs.get(link, f"no {link}"))
        page.check("  its MTU", str(grant.mtu or netdev.mtu), str(seen.mtus.get(link, "none")))
        addresses = [it for it in seen.addresses.get(link, ()) if not it.startswith("fe80:")]
        page.check("  its addresses", grant.addresses[number], _names(addresses))
    variables = {
        "NCCL_IB_HCA": "=" + ",".join(grant.devices),
        "UCX_NET_DEVICES": ",".join([*(f"{name}:1" for name in grant.devices), "lo"]),
        "NCCL_SOCKET_IFNAME": "=eth0",
        f"RDMA_DEVICES_{grant.name}": ",".join(grant.devices),
        f"RDMA_NETDEVS_{grant.name}": ",".join(links),
    }
    for name, value in variables.items():
        page.check(name, value, seen.env.get(name, "not set"))
    page.check("memlock limit", f"{MEMLOCK // 1024} KiB", f"{seen.memlock_kib} KiB")


def _check_untouched(stage: Stage, seen: Seen) -> None:
    stage.page.check("device nodes", "none", _names(seen.nodes))
    stage.page.check("variables of ours", "none", _names(it for it in seen.env if it.startswith(_OURS)))


def _check_host(page: Page, label: str, before: hoststate.HostState) -> None:
    # Namespaces, and what is in them, end in the kernel's own time.
    with suppress(DeadlineError):
        wait_until(lambda: not hoststate.difference(before, hoststate.take()), "the host to be as before", 5)
    found = hoststate.difference(before, hoststate.take())
    page.check(label, "as before", f"{len(found)} differences" if found else "as before")
    for sentence in found[:5]:
        page.quote(shorten(sentence, 2 * WIDTH - 20))


def _run_pod(stage: Stage, name: str, asked: str, *, show: bool = True) -> Sandbox:
    if show:
        stage.page.text(f"Pod {name}, annotation {_KEY}:" if asked else f"Pod {name}, no annotation.")
        stage.page.block(asked.lstrip("\n"))
    started = monotonic()
    pod = stage.containerd.cri.run_pod(name, annotations={_KEY: asked} if asked else {})
    stage.page.text(f"containerd has started it after {(monotonic() - started) * 1000:.0f} ms.")
    return pod


def _refusal(stage: Stage) -> str:
    try:
        _run_pod(stage, "busy", _IN_USE)
    except CriError as error:
        return error.text
    return "(it was not refused)"


def _show(stage: Stage, *arguments: str) -> str:
    """One of the product's own commands, as a person would call it."""
    done = stage.daemon.cli(*arguments)
    stage.page.command(f"nri-rdma {' '.join(arguments)}", done.stdout + done.stderr)
    assert done.returncode == 0, f"it ended with exit code {done.returncode}"
    return done.stdout


def _pods(stage: Stage) -> Sequence[Sandbox]:
    return stage.containerd.cri.pods()


def _delete_pods(containerd: Containerd) -> None:
    """In order, while the daemon still runs; what this cannot do the runtime's own end does."""
    with suppress(CriError, RuntimeError):
        for pod in containerd.cri.pods():
            containerd.cri.delete_pod(pod)


def _mac(node: Node, device: str) -> str:
    netdev = node.netdev_of(node.device(device))
    return netdev.mac if netdev is not None else "no netdev"


def _root_of_mac(node: Node, mac: str) -> str:
    functions = [netdev.function for netdev in node.netdevs if netdev.mac == mac]
    return described_root(node, functions[0]) if functions else "not of this node"


def _size(state: hoststate.HostState) -> str:
    counts = {
        "link": len(state.links),
        "address": len(state.addresses),
        "route": len(state.routes),
        "rule": len(state.rules),
        "permanent neighbour": len(state.neighbours),
    }
    plural = {"address": "addresses"}
    return ", ".join(f"{number} {it if number == 1 else plural.get(it, it + 's')}" for it, number in counts.items())


def _on_host(link: str) -> str:
    return "gone" if host_link(link) is None else "there"


def _names(names: Iterator[str] | Sequence[str] | set[str] | dict[str, str]) -> str:
    return " ".join(sorted(names)) or "none"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FabricError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def _announcing(page: Page) -> Iterator[None]:
    """Says at once that a signal was heard."""
    try:
        yield
    except Stopped:
        page.text("Stopping: everything the demo made is being removed ...")
        raise


@contextmanager
def _surviving(page: Page) -> Iterator[None]:
    """A part that cannot be told is a failed check, and the story goes on."""
    try:
        yield
    except (AssertionError, CriError, FabricError, RuntimeError, OSError, KeyError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        page.broken(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
