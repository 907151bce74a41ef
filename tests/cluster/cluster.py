"""A cluster: a control plane and nodes, each in a machine of its own, with links to the caller's network namespace.

The caller must have namespaces of its own (tests/namespaces.py): the links and routes of the cluster are made there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.control_plane import PORT, ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.leaks import FOLDER, RUN, run_prefix
from tests.cluster.machine import Machine, make_cgroup, remove_cgroup
from tests.cluster.node import Node
from tests.cluster.programs import ensure_programs

_READY_S = 120.0
_NOTHING: Mapping[str, Any] = {}
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class Cluster:
    """From construction to close(); a context manager. `times` has the seconds from the start to each step."""

    def __init__(
        self,
        nodes: int = 1,
        described: str = "eight",
        config: str = "",
        kubelet: Mapping[str, Any] = _NOTHING,
        gates: Sequence[str] = (),
        images: Sequence[Path] = (),
    ) -> None:
        """`gates` are feature gates that are on, in the kubelets, too. With `images`, archives that the nodes import,
        no node starts nri-rdma: a pod of such an image is to bring it."""
        self._begun = time.monotonic()
        self.times: dict[str, float] = {}
        self._programs = ensure_programs()
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=run_prefix(os.environ[RUN]), dir=FOLDER))
        self._stack = ExitStack()
        self._kubelet = {**kubelet, "featureGates": dict.fromkeys(gates, True)} if gates else kubelet
        self._images = tuple(images)
        self._cgroup = f"nrirdma-{self.folder.name}"
        names = tuple(f"n{number}" for number in range(1, nodes + 1))
        try:
            make_cgroup(self._cgroup)
            self._stack.callback(remove_cgroup, self._cgroup)
            _FORWARD.write_text("1")
            self.control = self._machine("control", 0)
            self._control_plane = ControlPlane(self.control, self._programs, _address(0), names, gates)
            self.nodes = {name: self._node(name, number, described, config) for number, name in enumerate(names, 1)}
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(keeps_logs=error is not None)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a shell needs in order to reach the cluster with kubectl."""
        path = f"{self._programs.folder}:{os.environ.get('PATH', '')}"
        return {"KUBECONFIG": str(self._control_plane.kubeconfig("admin")), "PATH": path}

    @property
    def api_server(self) -> tuple[str, int]:
        """The address and port that nodes reach the API server at: services have no addresses that work here."""
        return _address(0), PORT

    def kubectl(self, *arguments: str, given: object = None, fails: bool = False) -> str:
        """Run kubectl and return what it printed; `given` is an object for `-f -`. Raises ClusterError."""
        done = subprocess.run(
            [str(self._programs["kubectl"]), *arguments],
            env={**os.environ, **self.environment},
            input=None if given is None else json.dumps(given),
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0 and not fails:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout + (done.stderr if fails else "")

    def get(self, *arguments: str) -> Any:
        """Return what `kubectl get` says, read."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def wait(self, what: str, is_so: Callable[[], object], seconds: float = 60) -> None:
        """Wait until it is so. Raises ClusterError, which names a program that ended meanwhile."""
        until = time.monotonic() + seconds
        while not is_so():
            for machine in (self.control, *(node.machine for node in self.nodes.values())):
                for program in machine.programs.values():
                    if not program.runs:
                        raise ClusterError(f"{what}: {program.name} has ended. Next: see {program.log}.")
            if time.monotonic() > until:
                raise ClusterError(f"{what}: not within {seconds:.0f} s. Next: see the logs below {self.folder}.")
            time.sleep(0.05)

    def reboot(self, name: str) -> None:
        """Cut a node's power and start it again: its processes, /run and its links are gone, /var/lib is not."""
        node = self.nodes[name]
        node.machine.shut_down()
        node.machine.boot()
        _join(node.machine, list(self.nodes).index(name) + 1)
        node.start()
        self.wait(f"node {name}", partial(self._is_ready, name), _READY_S)

    def close(self, *, keeps_logs: bool = False) -> None:
        """End everything at once. Only logs are left, and only where somebody has to read them."""
        self._stack.close()
        if keeps_logs:
            for place in (*self.folder.glob("*/var-lib"), *self.folder.glob("*/image.tar")):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        else:
            shutil.rmtree(self.folder)

    def _start(self) -> None:
        self._control_plane.start()
        certificate = self.control.folder / "pki/apiserver.crt"
        self.wait("the API server's certificate", certificate.exists, _READY_S)
        ready = ("get", "--raw", "/readyz")
        self.wait("the API server", lambda: self.kubectl(*ready, fails=True) == "ok", _READY_S)
        self._mark("API server ready")
        self._control_plane.start_controllers()
        for node in self.nodes.values():
            node.start()
        self._mark("kubelets started")
        for name in self.nodes:
            self.wait(f"node {name}", partial(self._is_ready, name), _READY_S)
        self._mark("nodes ready")

    def _is_ready(self, name: str) -> bool:
        path = '-o=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", name, path, fails=True) == "True"

    def _mark(self, step: str) -> None:
        self.times[step] = round(time.monotonic() - self._begun, 2)

    def _machine(self, name: str, number: int) -> Machine:
        machine = Machine(name, self.folder / name, self._cgroup)
        self._stack.enter_context(machine)
        _join(machine, number)
        return machine

    def _node(self, name: str, number: int, described: str, config: str) -> Node:
        machine = self._machine(name, number)
        kubeconfig = self._control_plane.kubeconfig(name)
        return Node(
            machine,
            self._programs,
            kubeconfig,
            _address(number),
            _pods(number),
            described,
            config,
            self._kubelet,
            self._images,
        )


def _join(machine: Machine, number: int) -> None:
    """Give a machine a link to this network namespace, which routes between machines and their pods."""
    here = f"to-{machine.name}"
    _ip("link", "add", "name", here, "type", "veth", "peer", "name", "eth0", "netns", str(machine.pid))
    _ip("address", "add", f"198.18.{number}.1/24", "dev", here)
    _ip("link", "set", "dev", here, "up")
    machine.run("ip", "address", "add", f"{_address(number)}/24", "dev", "eth0")
    machine.run("ip", "link", "set", "dev", "eth0", "up")
    machine.run("ip", "route", "add", "default", "via", f"198.18.{number}.1")
    if number:
        _ip("route", "add", _pods(number), "via", _address(number))


def _address(number: int) -> str:
    return f"198.18.{number}.2"


def _pods(number: int) -> str:
    return f"198.18.{64 + number}.0/24"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
