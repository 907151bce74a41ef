"""A node, a runtime and a daemon to which things happen, and what must be true afterwards.

Nothing here imports the product: it is seen as its users see it, and the host by other programs' words.
"""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.places import ROLLBACK_AFTER, Place, Way, is_between_the_steps
from tests.faults.tally import Outcome, Tally
from tests.rig import hoststate, netnamespaces
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.expect import look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.faults import Faults
from tests.rig.guard import GUARDED
from tests.rig.node import Netdev, load
from tests.rig.runtime import Runtime

ASKS = {"rdma.noderesource.dev/pod": "- {count: 2}"}
_SMALL = 256 << 10
POD = "victim"
OURS = re.compile(r"nri-rdma: [A-Z]+(-[A-Z]+)*: ")
"""How every error of the product begins, wherever in the runtime's text."""
HOME_S = 30.0
"""An undo that failed once is tried again after half a second, then after one; a busy machine needs some more."""


class _Cri(Cri):
    """Remembers what was asked: a pod that a killed runtime still has gets its containers by that."""

    config = b""

    def _call(self, method: str, request: Any, response: Any, **options: Any) -> Any:
        if method == "RunPodSandbox":
            self.config = bytes(request.config.SerializeToString())
        return super()._call(method, request, response, **options)


class Arena:
    """One node with its daemon, for many tests; each leaves it as it found it, or it is made anew."""

    def __init__(self, runtime: Runtime, tally: Tally) -> None:
        self.runtime = runtime
        self.tally = tally
        self.faults = Faults(runtime.work / "faults")
        self.faults.plant()
        self.guarded = False
        """Whether the guard keeps the pod's containers from starting without their devices."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="kubelet")
        self._cri: _Cri | None = None
        self._config = b""
        self._uid = ""
        self._older: frozenset[str] = frozenset()
        self._netns: Path | None = None
        self._set_up()

    def _set_up(self) -> None:
        self.fabric = Fabric(load("two"))
        self.before = hoststate.take()
        self.daemon = Daemon(self.runtime, self.fabric, faults=self.faults)
        try:
            self.daemon.start()
        except BaseException:
            self.end()
            raise

    def repair(self) -> None:
        """Makes the netdevs that the node has lost again; returns when the daemon knows them."""
        if not any(self.is_gone(it) for it in self.fabric.node.netdevs):
            return
        self.fabric.repair()
        self.before = hoststate.take()
        numbers = {self.fabric.ifindex(it.name) for it in self.fabric.node.netdevs}
        try:
            wait_until(lambda: self._known_numbers() == numbers, "the daemon to know the new netdevs", 2)
        except DeadlineError:  # it read the tree while that was being written, which the kernel's own never is
            self.daemon.stop()
            self.daemon.start()

    def _known_numbers(self) -> set[int]:
        return {netdev["ifindex"] for device in self.status()["devices"] for netdev in device["netdevs"]}

    def is_fit(self) -> bool:
        """Whether another test may begin: everything is as it was before the first one."""
        if not self.runtime.runs or not self.daemon.runs:
            return False
        return not self.faults.pending() and not self.cri.pods() and not self.differences()

    def end(self) -> None:
        """Removes everything, whatever a test left."""
        self.faults.plant()
        self.faults.go()
        if self.daemon.runs:
            self.daemon.kill()
        self._threads.shutdown()
        try:
            if not self.runtime.runs:
                self.runtime.start()
            self._close_client()
            self.delete_pods()
        finally:
            self._close_client()
            shutil.rmtree(self.daemon.state_dir, ignore_errors=True)
            self.fabric.close()

    # -- what a kubelet does -----------------------------------------------------------------------------------------

    @property
    def cri(self) -> _Cri:
        """A client of the runtime as it is now."""
        if self._cri is None:
            logs = self.runtime.work / "pod-logs"
            parent = self.runtime.cgroup_parent
            self._cri = _Cri(self.runtime.cri_address, cgroup_parent=parent, log_directory=logs)
        return self._cri

    def restart_runtime(self) -> None:
        """Starts a runtime that was killed, and a client of it."""
        self.runtime.start()
        wait_until(self._answers, "the runtime to answer", 20)

    def _answers(self) -> bool:
        """gRPC would wait with growing pauses before it connects to the next runtime: a new client each time."""
        self._close_client()
        try:
            self.cri.version(seconds=2)
        except CriError:
            return False
        return True

    def _close_client(self) -> None:
        client, self._cri = self._cri, None
        if client is not None:
            self._config = client.config or self._config
            client.close()

    def run_pod(self) -> "Future[Sandbox]":
        """Has the pod started by another thread."""
        handler = GUARDED if self.guarded else ""
        # A new one each time: containerd 2.1 keeps sandboxes that NRI refused, and does not start with two of one name.
        self._uid = str(uuid.uuid4())
        return self._threads.submit(self.cri.run_pod, POD, annotations=ASKS, uid=self._uid, runtime_handler=handler)

    def stop_pod(self, pod: Sandbox) -> "Future[None]":
        """Has the pod stopped by another thread."""
        return self._threads.submit(self.cri.stop_pod, pod)

    def started_pod(self) -> Sandbox:
        """A pod that has what it asks for."""
        pod = self.run_pod().result()
        assert self.outcome(pod) is Outcome.COMPLETE
        return pod

    def assert_next_is_complete(self) -> None:
        """A pod that comes when everything is over has its devices, and gives them back."""
        self.started_pod()
        self.assert_owned_once()
        self.delete_pods()
        self.assert_given_back()

    def listed_pod(self) -> Sandbox | None:
        """The pod as the runtime has it now, if it is one that a kubelet would go on with."""
        config = self.cri.config or self._config
        for pod in self.cri.pods():
            if pod.uid == self._uid and self.cri.pod_status(pod).ready:
                return replace(pod, config=config)
        return None

    def outcome(self, pod: Sandbox, name: str = "main", theirs: str = "") -> Outcome:
        """What becomes of a container of the pod; half a pod is an error, and so is an error that is not ours."""
        try:
            container = self.cri.run_container(pod, name)
        except CriError as error:
            return refusal(error, theirs)
        return self.seen(container)

    def seen(self, container: Container) -> Outcome:
        """What a container that runs has."""
        has = look(self.cri, container)
        if not has.nodes:
            return Outcome.WITHOUT
        wanted = {name: tree_number(self.fabric, name) for name in ("uverbs0", "uverbs1", "rdma_cm")}
        macs = {netdev.mac for netdev in self.fabric.node.netdevs}
        assert has.nodes == wanted
        assert macs <= set(has.macs.values()), f"{macs} are not all in the pod: {has.macs}"
        return Outcome.COMPLETE

    def delete_pods(self) -> None:
        """As a kubelet: again, until the runtime has none."""
        wait_until(self._delete_all, "the runtime to have no pods", 30)

    def _delete_all(self) -> bool:
        for pod in self.cri.pods():
            try:
                self.cri.delete_pod(pod)
            except CriError as error:
                print(f"not yet deleted: {error}")
        return not self.cri.pods()

    # -- what happens ------------------------------------------------------------------------------------------------

    def count(self, what: str, outcome: Outcome) -> None:
        """For the table at the end; with the guard nobody runs without what it asks for."""
        assert not (self.guarded and outcome is Outcome.WITHOUT)
        self.tally.count(f"{what}, guarded" if self.guarded else what, outcome)

    def plant(self, place: Place, action: str) -> None:
        """Have something happen there, once."""
        passed = [f"{place.passes}*{place.name}=delay:0"] if place.passes else []
        failed = [f"{ROLLBACK_AFTER}=error"] if place.way is Way.ROLLBACK else []
        self.faults.plant(*failed, *passed, f"{place.name}={action}")

    @contextmanager
    def paused_at(self, place: Place) -> "Iterator[Future[Any]]":
        """The daemon waits at a place while the pod is started, or stopped; the future is the runtime's answer."""
        asked: Future[Any]
        # containerd 2.1 leaves the process and the namespace of a sandbox that NRI refused; the daemon removes them in
        # a second or so, if it lives that long.
        self._older = frozenset(self._bundles())
        pod = self.started_pod() if place.way is Way.BACK else None
        self._netns = self._find_netns() if pod is not None else None
        self.plant(place, "pause")
        asked = self.run_pod() if pod is None else self.stop_pod(pod)
        try:
            self._await_pause()
            yield asked
        finally:
            self.faults.go()

    def _await_pause(self) -> None:
        try:
            self.faults.wait_paused()
        except DeadlineError as error:
            raise AssertionError(f"{error}\nthe daemon's log:\n{self.daemon.log}") from error

    def answer(self, asked: "Future[Any]", theirs: str = "") -> Sandbox | None:
        """The pod that was started, if one was; else it was refused by us, or failed in `theirs` words."""
        try:
            pod = asked.result(60)
        except CriError as error:
            refusal(error, theirs)
            return None
        return pod if isinstance(pod, Sandbox) else None

    def _bundles(self) -> dict[str, dict[str, Any]]:
        """The OCI configuration of every sandbox and container that the runtime has, by id."""
        pattern = "io.containerd.runtime.v2.task/*/*/config.json"
        found = {}
        for file in (self.runtime.run / "state").glob(pattern):
            with suppress(FileNotFoundError):  # of a refused sandbox, which the daemon has just cleaned up
                found[file.parent.name] = json.loads(file.read_text())
        return found

    def pod_netns(self) -> Path:
        """The network namespace of the pod that something happens to; the runtime ends the processes first."""
        return self._netns or self._find_netns()

    def _find_netns(self) -> Path:
        (path,) = {
            Path(it["path"])
            for name, spec in self._bundles().items()
            for it in spec["linux"]["namespaces"]
            if name not in self._older and it["type"] == "network" and "/netns/" in it.get("path", "")
        }
        return path

    def kill_shims(self) -> int:
        """SIGKILL to each; how many there were."""
        killed = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we read the list
            if "containerd-shim" in words[0] and str(self.runtime.cri_address) in words:
                with suppress(ProcessLookupError):  # of a refused sandbox, which the daemon has just cleaned up
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed += 1
        return killed

    def await_daemon_end(self) -> bool:
        """The daemon that a fault kills has ended; whether that was between the first and the last step."""
        pid = self.daemon.pid
        self.daemon.wait_ended()
        places = self.faults.places(pid)
        starts = [number for number, place in enumerate(places) if place.startswith("before plan ")]
        journal = list((self.daemon.state_dir / "journal").glob("*.json"))
        return bool(journal) and is_between_the_steps(places[starts[-1] :] if starts else places)

    @contextmanager
    def small_state_directory(self) -> Iterator[Path]:
        """The daemon has its state on a file system of its own, with room for a few journals; `fill` fills it."""
        folder = self.daemon.state_dir
        self.daemon.stop()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL},mode=0700", "tmpfs", str(folder)]
        subprocess.run(command, check=True)
        try:
            self.daemon.start()
            yield folder
        finally:
            self.faults.go()
            if self.daemon.runs:
                self.daemon.stop()
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
            self.daemon.start()

    # -- what must be true -------------------------------------------------------------------------------------------

    def assert_owned_once(self, *, lost: Collection[str] = ()) -> None:
        """No device has two owners, and each netdev is in one namespace; of those that may be lost, in one at most."""
        for device in self.status()["devices"]:
            assert len(device["holders"]) <= 1, device
        macs = {netdev.mac: netdev.name for netdev in self.fabric.node.netdevs}

        def found() -> dict[str, tuple[int, ...]]:
            daemons = [self.daemon.pid] if self.daemon.runs else []
            places = netnamespaces.places(macs, cgroup=self.runtime.cgroup_parent, pids=daemons)
            return {macs[mac]: where for mac, where in places.items()}

        def is_right() -> bool:
            return all(len(where) == 1 or (not where and name in lost) for name, where in found().items())

        try:  # again: a netdev that moves meanwhile can be in neither of two namespaces that are looked at in turn
            wait_until(is_right, "each netdev to be in one namespace", HOME_S)
        except DeadlineError as error:
            raise AssertionError(f"{error}: {found()}") from None

    def assert_reported(self) -> None:
        """The pod that runs without what it asks for is told of."""
        wait_until(
            lambda: [it["pod"] for it in self.status()["unserved"]] == [f"default/{POD}"],
            "the report of a pod that runs without its devices",
        )

    def assert_given_back(self, *, but: Callable[[str], bool] = lambda _difference: False) -> None:
        """The host is as before, but for what the test did itself, and the daemon holds nothing."""
        assert not self.faults.pending(), "the fault did not happen"
        try:
            wait_until(lambda: not self.differences(but), "the host to be as before", HOME_S)
        except DeadlineError:
            raise AssertionError("\n".join([*self.differences(but), "the daemon's log:", self.daemon.log])) from None
        wait_until(lambda: self.status()["sandboxes"] == [], "the daemon to hold no sandbox", HOME_S)
        status = self.status()
        assert status["namespaces_held"] == 0
        assert [it["name"] for it in status["devices"] if it["holders"]] == []
        assert status["unserved"] == []
        journal = self.daemon.state_dir / "journal"
        assert [it.name for it in journal.iterdir()] == []

    def status(self) -> dict[str, Any]:
        """The daemon's own word."""
        return self.daemon.status()

    def is_gone(self, netdev: Netdev) -> bool:
        """Whether a netdev of the node is not on the host."""
        return not host_name(netdev)

    def differences(self, but: Callable[[str], bool] = lambda _difference: False) -> list[str]:
        """From the host before the first pod."""
        return [it for it in hoststate.difference(self.before, hoststate.take()) if not but(it)]


def refusal(error: CriError, theirs: str = "") -> Outcome:
    """Whose error it is: ours, or the runtime's in `theirs` words (a pattern) because of what the test did to it."""
    print(f"the runtime: {error}")
    if OURS.search(error.text):
        return Outcome.REFUSED
    if theirs and re.search(theirs, error.text):
        return Outcome.FAILED
    raise AssertionError(f"the runtime failed, and nri-rdma did not refuse: {error}") from error


def fill(folder: Path) -> Path:
    """Leaves no room on a file system; the file to delete."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return filler


def host_name(netdev: Netdev) -> str:
    """How a netdev of the node is called on the host; "" when it is not there."""
    return _names(None).get(netdev.mac, "")


def is_about(*names: str) -> Callable[[str], bool]:
    """Whether a difference is that something of these links is gone."""
    return lambda it: " is gone: " in it and any(name in it for name in names)


def delete_link(netns: Path | None, netdev: Netdev) -> bool:
    """Deletes a netdev of the node from a namespace; False: it is not there."""
    name = _names(netns).get(netdev.mac)
    if name is not None:
        subprocess.run([*_inside(netns), "ip", "link", "delete", name], capture_output=True, check=True)
    return name is not None


def _names(netns: Path | None) -> dict[str, str]:
    command = [*_inside(netns), "ip", "-j", "link", "show"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {it["address"]: it["ifname"] for it in json.loads(shown) if "address" in it}


def _inside(netns: Path | None) -> list[str]:
    return ["nsenter", f"--net={netns}"] if netns else []
