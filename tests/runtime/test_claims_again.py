"""Claims whose devices are not free, that are given up, and that are allocated again: a kubelet's calls to the real
daemon, and real containers with what was allocated last."""

import json
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.rig import api_server
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.dial import dial
from tests.rig.dra_state import ClaimState, write
from tests.rig.expect import host_link, look
from tests.rig.fabric import Fabric
from tests.rig.kubelet import PATIENT, Claim, Claimed, FakeKubelet, Given, fields, message, text
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

DRIVER = "rdma.noderesource.dev"
CALL = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{}Resources"
CONFIG = """
node_name = "n1"
kubeconfig = "KUBECONFIG"

[pools.claimed]
select = { device = ["mlx5_4", "mlx5_5", "mlx5_6"] }
modes = ["exclusive"]
door = "claims"
"""


@dataclass
class Driver:
    """The driver as its kubelet and its API server see it."""

    node: Fabric
    daemon: Daemon
    kubelet: FakeKubelet
    api: api_server.Server
    socket: Path
    specs: Path
    checkpoint: Path
    known: dict[str, ClaimState] = field(default_factory=dict)
    """What the kubelet knows of claims, by their names."""

    def know(self, claim: str, pod_uid: str, cdi: tuple[str, ...] = ()) -> None:
        """The kubelet writes down who has a claim, before it has it prepared."""
        state = ClaimState(uid=f"uid-{claim}", name=claim, pods=(pod_uid,), cdi_devices={DRIVER: cdi})
        self.known[claim] = state
        write(self.checkpoint, self.known.values())

    def allocate(self, claim: str, device: int) -> None:
        """Have the scheduler give a claim the device with this number, for a pod that is to come."""
        self.know(claim, str(uuid.uuid4()))
        name = f"pci-{self.node.node.rdma[device].function}".replace(":", "-").replace(".", "-")
        results = [{"request": "nic", "driver": DRIVER, "pool": "n1", "device": name}]
        self.api.claims[f"{api_server.CLAIMS}default/resourceclaims/{claim}"] = {
            "metadata": {"namespace": "default", "name": claim, "uid": f"uid-{claim}", "resourceVersion": "1"},
            "status": {"allocation": {"devices": {"results": results}}},
        }

    @contextmanager
    def calling(self, method: str, claim: str, seconds: float = 40) -> Iterator[Any]:
        """A call that is under way; it is given up at the end."""
        request = message(1, text(1, "default") + text(2, f"uid-{claim}") + text(3, claim))
        with dial(self.socket) as channel:
            call = channel.unary_unary(CALL.format(method)).future(request, timeout=seconds)
            yield call
            call.cancel()

    def prepare(self, claim: str) -> tuple[str, ...]:
        """The CDI devices of a claim that is prepared at once."""
        with self.calling("Prepare", claim, 10) as call:
            return cdi_devices(call.result())

    def unprepare(self, claim: str) -> None:
        with self.calling("Unprepare", claim, 10) as call:
            call.result()

    def run(self, cri: Cri, claim: str, cdi: tuple[str, ...]) -> tuple[Sandbox, Container]:
        """A pod with a container that has the claim."""
        given = Claimed(driver=DRIVER, pool="n1", device="any", cdi=cdi)
        self.kubelet.add_pod(
            "default",
            f"pod-{claim}",
            Given(name="main", claims=(Claim(namespace="default", name=claim, devices=(given,)),)),
        )
        uid = str(uuid.uuid4())
        self.know(claim, uid, cdi)
        pod = cri.run_pod(f"pod-{claim}", uid=uid)
        container = cri.create_container(pod, "main", cdi_devices=cdi)
        cri.start(container)
        return pod, container

    @contextmanager
    def waiting(self, claim: str, calls: int) -> Iterator[list[Any]]:
        """Calls for one claim, which wait for its device."""
        asked = len(self.api.seen)
        with ExitStack() as stack:
            yield_to = [stack.enter_context(self.calling("Prepare", claim)) for _ in range(calls)]
            wait_until(lambda: len(self.api.seen) > asked, "the question to the API server")
            time.sleep(0.3)
            yield yield_to


def cdi_devices(answer: bytes) -> tuple[str, ...]:
    (entry,) = [dict(fields(content)) for _, content in fields(answer)]
    answered = dict(fields(entry[2]))
    assert 2 not in answered, answered
    return tuple(content.decode() for number, content in fields(answered[1]) if number == 4)


@pytest.fixture
def driver(runtime: Runtime, node: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("k")  # the path of a socket is short
    (folder / "plugins_registry").mkdir()
    config = folder / "config.toml"
    with FakeKubelet() as kubelet, api_server.running() as api:
        config.write_text(CONFIG.replace("KUBECONFIG", str(api.kubeconfig(folder))))
        flags = ("--config", str(config), "--kubelet-plugins-dir", str(folder / "kubelet"), *PATIENT)
        with Daemon(runtime, node, extra=flags, kubelet=kubelet.socket) as daemon:
            socket = folder / "kubelet" / DRIVER / "dra.sock"
            registrar = folder / f"plugins_registry/{DRIVER}-reg.sock"  # the last one that is made
            wait_until(registrar.is_socket, lambda: f"the driver's socket; the daemon's log:\n{daemon.log}")
            yield Driver(node, daemon, kubelet, api, socket, runtime.cdi_dir, folder / "dra_manager_state")
    for path in runtime.cdi_dir.iterdir():
        path.unlink()


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["the kubelet cancels", "the kubelet does not cancel"])
def test_a_claim_that_was_given_up_while_it_waited_has_what_it_is_allocated_next(
    host_equal: None, cri: Cri, driver: Driver, is_cancelled: bool
) -> None:
    driver.allocate("owner", 4)
    owner, _ = driver.run(cri, "owner", driver.prepare("owner"))
    driver.allocate("waits", 4)
    with driver.waiting("waits", 1) as (call,):
        if is_cancelled:
            call.cancel()
        driver.unprepare("waits")
        cri.remove_pod(owner)
        driver.unprepare("owner")
        wait_until(lambda: host_link("rail4") is not None, "the device to be free")
        time.sleep(0.5)
        assert not list(driver.specs.iterdir())
        driver.allocate("waits", 5)
        driver.allocate("thief", 4)
        pod, container = driver.run(cri, "waits", driver.prepare("waits"))
        assert "uverbs5" in look(cri, container).nodes
        assert "uverbs4" not in look(cri, container).nodes
        assert (host_link("rail4") is None, host_link("rail5") is None) == (False, True)
        other, theirs = driver.run(cri, "thief", driver.prepare("thief"))
        assert "uverbs4" in look(cri, theirs).nodes
    cri.remove_pod(pod)
    cri.remove_pod(other)


def test_sixteen_pods_of_a_claim_that_waits_keep_no_other_claim_and_no_end_waiting(
    host_equal: None, cri: Cri, driver: Driver
) -> None:
    driver.allocate("owner", 4)
    owner, _ = driver.run(cri, "owner", driver.prepare("owner"))
    driver.allocate("waits", 4)
    driver.allocate("other", 5)
    with driver.waiting("waits", 16) as calls:
        # Each has ten seconds, of the forty that a call for the claim waits.
        driver.prepare("other")
        driver.daemon.end(signal.SIGTERM)
        assert all(isinstance(call.exception(30), grpc.RpcError) for call in calls)
        driver.daemon.start()
    assert [it.name for it in driver.specs.iterdir() if "waits" in it.name] == []
    cri.remove_pod(owner)


def test_an_api_server_that_sends_a_byte_now_and_then_does_not_keep_the_daemon_from_ending(
    host_equal: None, driver: Driver
) -> None:
    def dribble(handler: Any, seen: api_server.Seen) -> bool:
        if "resourceclaims" not in seen.path:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        while not driver.api.is_over.wait(1.0):
            handler.wfile.write(b" ")
            handler.wfile.flush()
        return True

    driver.allocate("waits", 4)
    driver.api.answer = dribble
    with ExitStack() as stack:
        for number in range(8):
            stack.enter_context(driver.calling("Prepare", f"waits-{number}"))
        wait_until(lambda: len([it for it in driver.api.seen if "resourceclaims/waits" in it.path]) == 8, "8 questions")
        driver.daemon.end(signal.SIGTERM)  # it has ten seconds, of the forty that a call waits
        driver.daemon.start()


def test_the_spans_of_a_pod_have_a_link_to_the_call_that_prepared_its_claim(
    host_equal: None, cri: Cri, driver: Driver
) -> None:
    driver.allocate("traced", 4)
    cdi = driver.prepare("traced")
    (prepared,) = [it for it in spans(driver.daemon) if it["name"] == "NodePrepareResources"]
    assert prepared["attributes"]["rdma.claim"] == "default/traced"
    steps = [it["name"] for it in spans(driver.daemon) if it["parent_id"] == prepared["span_id"]]
    assert steps == ["get claim", "admit", "write spec"]
    driver.daemon.end(signal.SIGKILL)
    driver.daemon.start()
    pod, _ = driver.run(cri, "traced", cdi)
    links = {link["span_id"] for it in spans(driver.daemon) for link in it["links"] if it["name"] in {"place", "adopt"}}
    assert links == {prepared["span_id"]}
    cri.remove_pod(pod)


def spans(daemon: Daemon) -> list[dict[str, Any]]:
    done = daemon.cli("trace", "-o", "json")
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)["spans"]
    return told
