"""Claims: Prepare beside a bare gRPC call, and events of plain pods on a node where a hundred pods have a claim."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from bench.echo import echoing
from bench.figures import Row, p99_row, paired_row
from bench.messages import create_container, pod, run_pod
from bench.peer import TIMEOUT_S, Peer
from bench.pods import refuse_error
from bench.processes import Place, await_rest, on_one_cpu, resident_kib
from bench.rounds import alternating, await_true, synchronized, timed
from tests.rig.api_server import Server, running, send
from tests.rig.dra_state import ClaimState, write
from tests.rig.kubelet import Claim, Claimed, FakeKubelet, Given, fields, message, text

HELD, BLOCK = 100, 10
MOST = 1.5
"""Every pod of a node that serves claims waits until the kubelet's checkpoint is read (40 KB for 100 claims: 6 us)."""
US_PER_NS = 1e-3
WITH, WITHOUT = "with-claims", "without-claims"
DRIVER = "rdma.noderesource.dev"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/training/resourceclaims/"
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"
_FIRST_POD = 1000
CONFIG = """\
node_name = "node-a"
kubeconfig = {kubeconfig}
kubelet_plugins_dir = {plugins}

[pools.nics]
modes = ["shared"]
door = "claims"
"""


def rows(place: Place, rounds: int, events: int) -> list[Row]:
    """Two daemons with a kubelet, one of which has prepared 100 claims that 100 pods have."""
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)  # the API server is there
    with ExitStack() as stack:
        stack.enter_context(on_one_cpu())
        kubelet = stack.enter_context(FakeKubelet())
        server = stack.enter_context(running())
        folder = kubelet.socket.parent  # its path is short enough for a socket's
        (folder / "plugins_registry").mkdir()
        config = place.folder / "claims.toml"
        paths = {"kubeconfig": server.kubeconfig(place.folder), "plugins": folder / "plugins"}
        config.write_text(CONFIG.format(**{name: json.dumps(str(path)) for name, path in paths.items()}))
        flags = [f"--kubelet-socket={kubelet.socket}", "--kubelet-wait=1"]
        without = synchronized(
            stack, place, WITHOUT, place.daemon_command(WITHOUT, *flags, f"--cdi-dirs={place.folder / 'no-cdi'}")
        )
        bare = resident_kib(without.pid) / 1024
        ours = synchronized(stack, place, WITH, place.daemon_command(WITH, *flags, f"--config={config}"))
        devices = _registered(folder, server)
        server.answer = lambda handler, seen: _tell_claim(handler, seen, devices)
        found = _prepared(stack, place, folder, kubelet, ours)
        await_rest(ours.pid)
        mine = resident_kib(ours.pid) / 1024
        found.append(Row(figure=f"memory with {HELD} claims", value=mine, unit="MiB", floor=bare, ratio=mine / bare))
        plain = pod(1)
        for name, call in (("sandbox event", run_pod(plain)), ("create, nothing asked", create_container(plain))):
            floor, its = alternating(without, ours, call, rounds, events)
            figure = f"{name}, beside {HELD} pods with claims"
            found.append(paired_row(figure, floor, its, unit="us", scale=US_PER_NS, target=MOST))
        return found


def _registered(folder: Path, server: Server) -> list[str]:
    """Take the driver, as the kubelet does, and return the devices that it then publishes."""
    registrar = folder / "plugins_registry" / f"{DRIVER}-reg.sock"
    await_true(registrar.is_socket, "the driver does not listen")
    with grpc.insecure_channel(f"unix:{registrar}") as channel:
        channel.unary_unary(NOTIFY)(b"\x08\x01", timeout=TIMEOUT_S)  # field 1: true
    await_true(lambda: bool(server.slices), "the driver publishes nothing")
    (told,) = server.slices.values()
    return [it["name"] for it in told["spec"]["devices"]]


def _tell_claim(handler: Any, seen: Any, devices: Sequence[str]) -> bool:
    """Answer who asks for a claim: the one of that number has a device of all in turn."""
    if not seen.path.startswith(CLAIMS):
        return False
    name = seen.path.removeprefix(CLAIMS)
    device = devices[int(name.removeprefix("claim-")) % len(devices)]
    uid = pod(_FIRST_POD + int(name.removeprefix("claim-"))).uid
    owner = {"kind": "Pod", "uid": uid, "controller": True}
    result = {"request": "nic", "driver": DRIVER, "pool": "node-a", "device": device}
    told = {
        "metadata": {"namespace": "training", "name": name, "uid": f"uid-{name}", "ownerReferences": [owner]},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "uid": uid}],
        },
    }
    return send(handler, 200, told)


def _prepared(stack: ExitStack, place: Place, folder: Path, kubelet: FakeKubelet, ours: Peer) -> list[Row]:
    """Have 100 claims prepared, beside a server that answers as many bytes, and give each to a pod."""
    channel = stack.enter_context(grpc.insecure_channel(f"unix:{folder / 'plugins' / DRIVER / 'dra.sock'}"))
    prepare = channel.unary_unary(PREPARE)
    names = [f"claim-{number}" for number in range(HELD)]
    pods = [pod(_FIRST_POD + number) for number in range(HELD)]
    known = [
        ClaimState(uid=f"uid-{name}", name=name, namespace="training", pods=(asking.uid,))
        for name, asking in zip(names, pods, strict=True)
    ]
    write(folder / "dra_manager_state", known)
    requests = [message(1, text(1, "training") + text(2, f"uid-{it}") + text(3, it)) for it in names]
    answers = [prepare(requests[0], timeout=TIMEOUT_S)]  # the first one imports
    bare = stack.enter_context(echoing(place.folder, answers[0]))
    floor, times = [], []
    for at in range(1, HELD, BLOCK):
        block = requests[at : at + BLOCK]
        floor.append([timed(lambda: bare(it, timeout=TIMEOUT_S)) for it in block])  # noqa: B023
        times.append([timed(lambda: answers.append(prepare(it, timeout=TIMEOUT_S))) for it in block])  # noqa: B023
    for name, answer, asking in zip(names, answers, pods, strict=True):
        device = _device(answer)
        claim = Claim(namespace="training", name=name, devices=(device,))
        kubelet.add_pod(asking.namespace, asking.name, Given(name="trainer", claims=(claim,)))
        refuse_error(ours.call(run_pod(asking)))
        adjusted = ours.call(create_container(asking, cdi_devices=device.cdi))
        if b"RDMA_DEVICES_" not in adjusted:
            raise RuntimeError(f"the container of {name} got nothing")
    return [
        paired_row("Prepare", floor, times, unit="us", scale=US_PER_NS),
        p99_row("Prepare, p99", floor, times, scale=US_PER_NS),
    ]


def _device(answer: bytes) -> Claimed:
    """The only device in the answer to Prepare."""
    (claim,) = (dict(fields(entry))[2] for _, entry in fields(answer))
    told = dict(fields(claim))
    if 2 in told:
        raise RuntimeError(told[2].decode())
    device = dict(fields(told[1]))
    return Claimed(driver=DRIVER, pool=device[2].decode(), device=device[3].decode(), cdi=(device[4].decode(),))
