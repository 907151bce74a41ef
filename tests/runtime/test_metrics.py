"""What Prometheus reads of a daemon is what pods of a real runtime had, and /healthz is whether it serves them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.faults import Faults
from tests.rig.guard import GUARDED
from tests.rig.launched_daemon import LaunchedDaemon
from tests.rig.launcher import install
from tests.rig.runtime import Runtime
from tests.rig.scrape import Page, ask, free_port, scrape
from tests.runtime.asking import WAYS, kubernetes

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

POD = "rdma.noderesource.dev/pod"
EVENTS = "nri_rdma_nri_requests_total"


class Scraped(Daemon):
    """A daemon with a page of metrics."""

    def __init__(self, runtime: Runtime, node: Fabric, faults: Faults | None = None) -> None:
        self.port = free_port()
        address = ("--metrics-address", f"127.0.0.1:{self.port}")
        super().__init__(runtime, node, extra=(*EXCLUSIVE_FIRST, *address), faults=faults)

    def page(self) -> Page:
        return scrape(self.port)

    def health(self) -> tuple[int, str]:
        answered = ask(self.port, "/healthz")
        return answered.status, answered.text


@pytest.fixture
def daemon(runtime: Runtime, node: Fabric) -> Iterator[Scraped]:
    """One on the node "eight"."""
    with Scraped(runtime, node) as running:
        yield running


def rails_of_the_host() -> set[str]:
    """The netdevs of the node "eight" that are on the host."""
    shown = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    return {it["ifname"] for it in json.loads(shown) if it["ifname"].startswith("rail")}


def test_the_page_counts_what_pods_had(host_equal: None, daemon: Scraped, cri: Cri) -> None:
    before, all_rails = daemon.page(), rails_of_the_host()
    assert before.by(EVENTS, "method").keys() <= {"Configure", "Synchronize"}
    assert before.by("nri_rdma_devices", "state") == {"free": 8}
    one, other = (
        cri.run_pod(name, annotations={POD: f"[{{match: {{device: mlx5_{number}}}}}]"})
        for name, number in (("one", 0), ("other", 1))
    )
    plain = cri.run_pod("plain")
    for pod in (one, other, plain):
        cri.run_container(pod, "main")
    with pytest.raises(CriError):
        cri.run_pod("greedy", annotations={POD: "99"})
    wait_until(lambda: len(rails_of_the_host()) == len(all_rails) - 2, "the netdevs to be in their pods")

    page, status = daemon.page(), daemon.status()
    starts = {outcome: page.value(EVENTS, method="RunPodSandbox", outcome=outcome) for outcome in OUTCOMES}
    assert starts == {"done": 2, "refused": 1, "nothing_asked": 1, "failed": 0}
    creates = {outcome: page.value(EVENTS, method="CreateContainer", outcome=outcome) for outcome in OUTCOMES}
    assert creates == {"done": 2, "refused": 0, "nothing_asked": 1, "failed": 0}
    latencies = "nri_rdma_nri_request_duration_seconds"
    assert page.value(f"{latencies}_count", method="RunPodSandbox", outcome="done") == 2
    assert 0 < page.value(f"{latencies}_sum", method="RunPodSandbox", outcome="done") < 10
    assert page.by("nri_rdma_refusals_total", "code") == {"DEVICES-EXHAUSTED": 1} == refused(status)
    held = sum(bool(it["holders"]) for it in status["devices"])
    assert page.by("nri_rdma_devices", "state") == {"free": 6, "in_pods": held}
    assert page.value("nri_rdma_attached_pods") == len({it["id"] for it in status["sandboxes"]}) == 2
    assert page.by("nri_rdma_pool_devices", "pool") == {it["name"]: len(it["devices"]) for it in status["pools"]}
    steps = page.by("nri_rdma_step_duration_seconds_count", "step")
    assert (steps["attach"], steps["move-netdev"], steps["inject"]) == (2, 2, 2)
    assert page.value("nri_rdma_build_info", **{key: status["daemon"][key] for key in ("version", "revision")}) == 1
    assert page.value("process_start_time_seconds") == pytest.approx(status["daemon"]["started"], abs=60)

    cri.delete_pod(one)
    wait_until(lambda: len(rails_of_the_host()) == len(all_rails) - 1, "a netdev to be back")
    wait_until(lambda: daemon.page().value("nri_rdma_attached_pods") == 1, "the pod to be forgotten")
    page = daemon.page()
    assert page.by("nri_rdma_devices", "state") == {"free": 7, "in_pods": 1}
    assert page.value("nri_rdma_step_duration_seconds_count", step="undo move-netdev", outcome="done") == 1
    assert page.value("nri_rdma_attachments_failing_to_return") == 0
    for pod in (other, plain):
        cri.delete_pod(pod)
    wait_until(lambda: daemon.page().by("nri_rdma_devices", "state") == {"free": 8}, "all devices to be back")
    assert daemon.page().by("nri_rdma_attachments", "state") == {}


OUTCOMES = ("done", "refused", "nothing_asked", "failed")


def refused(status: dict[str, object]) -> dict[str, float]:
    rows = status["refused"]
    assert isinstance(rows, list)
    return {row["code"]: row["count"] for row in rows}


def test_a_return_that_fails_is_on_the_page_until_it_succeeds(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    faults = Faults(tmp_path / "faults")
    failing, undo = "nri_rdma_attachments_failing_to_return", "nri_rdma_step_duration_seconds_count"
    with Scraped(runtime, node, faults) as daemon:
        pod = cri.run_pod("returns", annotations={POD: "[{match: {device: mlx5_4}}]"})
        wait_until(lambda: "rail4" not in rails_of_the_host(), "the netdev to be in the pod")
        assert daemon.page().value(failing) == 0
        faults.plant("always*before restore=error:EBUSY")
        cri.stop_pod(pod)
        page = wait_until(lambda: page if (page := daemon.page()).value(failing) else None, "the undo to fail")
        assert page.value(failing) == sum(bool(it["undo_error"]) for it in daemon.status()["sandboxes"]) == 1
        assert page.value(undo, step="undo", outcome="failed") >= 1
        assert page.by("nri_rdma_devices", "state") == {"free": 7, "in_pods": 1}
        faults.plant()
        wait_until(lambda: daemon.page().value(failing) == 0, "the undo to be over", 30)
        wait_until(lambda: daemon.page().by("nri_rdma_devices", "state") == {"free": 8}, "the device to be free")
        page = daemon.page()
        assert page.value(undo, step="undo", outcome="done") == 1
        assert page.value(undo, step="restore", outcome="done") == 1
        cri.remove_pod(pod)


def test_the_page_counts_what_the_kubelet_asked_for(
    host_equal: None,
    runtime: Runtime,
    node: Fabric,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("NRI_RDMA_METRICS_ADDRESS", f"127.0.0.1:{port}")
    calls, cri = "nri_rdma_kubelet_requests_total", runtime.cri
    with kubernetes(runtime, node, tmp_path_factory.mktemp("k")) as on, on.daemon() as daemon:
        pods = []
        for way in ("share", "claim"):
            asked = WAYS[way].prepare(on, way, daemon)
            pods.append(cri.run_pod(way, runtime_handler="" if runtime.release.is_crio else GUARDED))
            container = cri.create_container(
                pods[-1], "main", annotations=asked.container_annotations, cdi_devices=asked.cdi_devices
            )
            cri.start(container)
        page, status = scrape(port), daemon.status()
        assert page.by(calls, "method") == {"Allocate": 1, "NodePrepareResources": 1}
        assert page.by(calls, "outcome") == {"done": 2}
        assert page.value("nri_rdma_pool_shares", pool="hcas") == 8
        given = {it["name"]: it["given"] for it in status["pools"] if it.get("resource")}
        assert page.by("nri_rdma_pool_shares_given", "pool") == given == {"hcas": 1}
        assert page.by("nri_rdma_claims", "state") == {"attached": 1}
        assert page.value("nri_rdma_published_devices") == status["driver"]["published"]["devices"]
        for pod in pods:
            cri.delete_pod(pod)
        wait_until(lambda: not scrape(port).by("nri_rdma_pool_shares_given", "pool"), "the share to be free")


def test_no_label_says_which_pods_there_are(host_equal: None, daemon: Scraped, cri: Cri) -> None:
    pod = cri.run_pod("secretive", annotations={POD: "1"})
    cri.run_container(pod, "undercover")
    text = ask(daemon.port, "/metrics").text
    assert "RunPodSandbox" in text
    assert [word for word in ("secretive", "undercover", pod.id, "mlx5_", "default/") if word in text] == []
    cri.delete_pod(pod)


def test_the_daemon_is_well_while_its_runtime_is_there(
    host_equal: None, runtime: Runtime, daemon: Scraped, cri: Cri
) -> None:
    assert daemon.health() == (200, "ok\n")
    assert daemon.page().value("nri_rdma_runtime_synchronized") == 1
    runtime.terminate()
    status, text = wait_until(lambda: daemon.health() if daemon.health()[0] != 200 else None, "it to notice")
    assert status == 503
    assert text.startswith("the runtime is disconnected, so that pods start without nri-rdma (")
    assert text.count("\n") == 1
    assert daemon.page().value("nri_rdma_runtime_synchronized") == 0
    runtime.start()
    wait_until(lambda: daemon.health() == (200, "ok\n"), "it to be connected again", 30)


def test_a_daemon_that_the_runtime_starts_serves_them_too(
    host_equal: None, runtime: Runtime, node: Fabric, tmp_path: Path
) -> None:
    port = free_port()
    settings = {"metrics_address": f"127.0.0.1:{port}"}
    with LaunchedDaemon(runtime, node, install(tmp_path / "venv"), settings):
        assert ask(port, "/healthz").text == "ok\n"
        pod = runtime.cri.run_pod("launched", annotations={POD: "1"})
        wait_until(
            lambda: scrape(port).value(EVENTS, method="RunPodSandbox", outcome="done") == 1, "the call to be counted"
        )
        runtime.cri.delete_pod(pod)


def test_an_address_that_somebody_has_keeps_no_pod_waiting_and_is_had_later(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    daemon = Scraped(runtime, node)
    other = subprocess.Popen(
        ["python3", "-m", "http.server", "--bind", "127.0.0.1", str(daemon.port)], cwd=tmp_path, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: ask_or_none(daemon.port), "the other server")
        with daemon:
            pod = cri.run_pod("served", annotations={POD: "1"})
            assert "uverbs0" in cri.exec(cri.run_container(pod, "main"), ["ls", "/dev/infiniband"]).stdout
            cri.delete_pod(pod)
            assert "metrics are not served" in daemon.log
            metrics = daemon.status()["metrics"]
            assert metrics == {
                "address": f"127.0.0.1:{daemon.port}",
                "error": f"127.0.0.1:{daemon.port}: Address already in use",
            }
            assert daemon.cli("status", "--check").stdout == f"metrics are not served: {metrics['error']}\n"
            other.kill()
            other.wait()
            wait_until(lambda: daemon.status()["metrics"]["error"] == "", "the address to be had")
            assert daemon.health() == (200, "ok\n")
    finally:
        other.kill()
        other.wait()
        if other.stderr is not None:
            other.stderr.close()


def ask_or_none(port: int) -> bool | None:
    try:
        return ask(port, "/").status == 200
    except OSError:
        return None
