"""The status of claims is written by a thread of its own: the newest state of each, however the API server is."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest

from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.doors.dra import reporting
from nri_rdma.doors.dra.claim_specs import SpecStyle, claim_spec, spec_file
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.doors.dra.status_writing import ATTEMPTS
from nri_rdma.engine.claim_states import CdiState
from nri_rdma.host.cdi.folder import FolderScan, scan
from nri_rdma.host.cdi.write import write_spec
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.claim import Claim, ClaimName, ClaimRequest, GivenDevice
from nri_rdma.model.driver import PreparedClaims
from nri_rdma.model.request import Mode
from tests.rig.api_server import PROTOBUF, Seen, Server, running, send
from tests.rig.deadline import wait_until
from tests.rig.kubelet import message, text
from tests.unit.model.hardware import nic

OURS = "rdma.noderesource.dev"


def claim_name(number: int = 1) -> ClaimName:
    return ClaimName(namespace="team", name=f"c{number}", uid=f"u{number}")


def path_of(number: int = 1) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/c{number}"


def cdi(number: int = 1) -> str:
    return f"{OURS}/claim=u{number}-nic"


@dataclass
class Rig:
    """A writer, the API server that it writes to, and the states that it reads."""

    server: Server
    folder: Path
    api: ApiServer
    states: dict[str, CdiState] = field(default_factory=dict)
    is_broken: bool = False
    reads: int = 0
    broken_reads: int = 0

    def __post_init__(self) -> None:
        self.writer = self.another()

    def another(self) -> StatusWriter:
        """Another daemon's writer."""
        return StatusWriter(self.api, self.read, self.folder / "cdi")

    def read(self) -> dict[str, CdiState]:
        """Read the states, as an engine does."""
        self.reads += 1
        if self.is_broken:
            self.broken_reads += 1
            raise RuntimeError("a bug")
        return dict(self.states)

    def allocate(self, *numbers: int) -> None:
        """Have the API server know these claims, each with the device dNUMBER."""
        for it in numbers or (1,):
            result = {"request": "nic", "driver": OURS, "pool": "node-a", "device": f"d{it}"}
            self.server.claims[path_of(it)] = {
                "metadata": {"namespace": "team", "name": f"c{it}", "uid": f"u{it}", "resourceVersion": "1"},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }

    def attach(self, number: int = 1, rdma_device: str = "mlx5_0") -> None:
        """Have a pod get the claim's device."""
        given = GivenDevice(device=f"d{number}", rdma_device=rdma_device, nodes=(), mode=Mode.SHARED)
        self.states[cdi(number)] = CdiState(given=(given,))
        self.writer.news(frozenset({cdi(number)}), "")

    def end(self, number: int = 1) -> None:
        """Have the pod give it back."""
        del self.states[cdi(number)]
        self.writer.news(frozenset({cdi(number)}), "")

    def condition(self, number: int = 1) -> tuple[str, str, str]:
        """Status, reason and message of Ready; empty where nothing is said."""
        devices = self.server.claims[path_of(number)]["status"].get("devices") or ()
        found = [it for entry in devices if entry["driver"] == OURS for it in entry["conditions"]]
        return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else ("", "", "")

    def await_reason(self, reason: str, number: int = 1) -> None:
        """Wait until the claim says so."""
        wait_until(lambda: self.condition(number)[1] == reason, f"{reason} of claim {number}")

    def refuse(self, status: int, message: str = "so it is", method: str = "PATCH") -> None:
        """Answer such requests with this status from now on."""
        self.server.answer = lambda handler, seen: seen.method == method and send(handler, status, {"message": message})

    def serve(self) -> None:
        """Answer as it should from now on."""
        self.server.answer = lambda _handler, _seen: False


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(reporting, "QUIET_S", 0.05)
    monkeypatch.setattr(reporting, "FIRST_PAUSE_S", 0.1)
    with running() as server:
        made = Rig(server=server, folder=tmp_path, api=ApiServer(server.kubeconfig(tmp_path)))
        made.allocate()
        made.writer.prepared(claim_name())
        made.writer.start()
        yield made
        made.writer.close()
        made.api.close()


def settle(rig: Rig) -> None:
    """Wait until the writer has read or written nothing for a while."""
    seen = -1
    while len(rig.server.seen) != seen:
        seen = len(rig.server.seen)
        time.sleep(0.2)


def test_a_claim_is_ready_while_its_pod_has_the_device_and_then_not(rig: Rig) -> None:
    rig.attach()
    rig.await_reason("Attached")
    rig.end()
    rig.await_reason("Returned")
    assert [it.path for it in rig.server.writes] == [f"{path_of()}/status"] * 2


def test_a_claim_that_is_only_prepared_has_no_status(rig: Rig) -> None:
    settle(rig)
    rig.writer.unprepared(claim_name())
    wait_until(lambda: not rig.writer.known, "that it is forgotten")
    settle(rig)
    assert rig.server.writes == []


def test_an_attach_that_failed_is_said_until_another_one_succeeds(rig: Rig) -> None:
    rig.writer.news(frozenset({cdi()}), "the sentence")
    wait_until(lambda: rig.condition() == ("False", "AttachFailed", "the sentence"), "the failure")
    rig.attach()
    rig.await_reason("Attached")
    rig.end()
    rig.await_reason("Returned")


def test_a_claim_that_is_not_prepared_says_why_and_is_forgotten(rig: Rig) -> None:
    rig.allocate(2)
    rig.writer.refused(claim_name(2), "the sentence")
    wait_until(lambda: rig.condition(2) == ("False", "PrepareFailed", "the sentence"), "the refusal")
    wait_until(lambda: list(rig.writer.known) == ["u1"], "that it is forgotten")
    rig.writer.refused(claim_name(2), "the sentence")  # the kubelet's next attempt
    settle(rig)
    assert len(rig.server.writes) == 1


def test_what_is_written_already_is_neither_read_nor_written_again(rig: Rig) -> None:
    rig.attach()
    rig.await_reason("Attached")
    asked = len(rig.server.seen)
    for _ in range(5):
        rig.writer.news(frozenset({cdi()}), "")
        time.sleep(0.1)
    assert len(rig.server.seen) == asked
    assert rig.reads <= 2 + 5  # one for each news: nothing that is not due is looked at


def test_news_in_a_short_time_are_one_write_of_the_last_state(rig: Rig) -> None:
    for number in range(50):
        rig.attach(rdma_device=f"mlx5_{number}")
    wait_until(lambda: "mlx5_49" in rig.condition()[2], "the last state")
    settle(rig)
    assert len(rig.server.writes) <= 2


def test_news_of_other_cdi_devices_are_of_no_claim(rig: Rig) -> None:
    wait_until(lambda: rig.reads, "the first look")
    settle(rig)
    reads = rig.reads
    rig.writer.news(frozenset({"gpu.example.com/gpu=u1-nic", f"{OURS}/claim=u12-nic"}), "no")
    settle(rig)
    assert [it for it in rig.server.seen if it.method != "GET"] == []
    assert rig.reads == reads


def test_who_else_writes_the_claim_loses_nothing(rig: Rig) -> None:
    """A conflict: the claim is read again, and what another one wrote meanwhile stays."""

    def meanwhile(_handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
        claim = rig.server.claims[path_of()]
        if seen.method == "PATCH" and "devices" not in claim["status"]:
            claim["metadata"]["resourceVersion"] = "7"
            claim["status"]["devices"] = [{"driver": "gpu.example.com", "pool": "p", "device": "g0"}]
        return False

    rig.server.answer = meanwhile
    rig.attach()
    rig.await_reason("Attached")
    assert [it["driver"] for it in rig.server.claims[path_of()]["status"]["devices"]] == ["gpu.example.com", OURS]


def test_conflicts_without_end_are_tried_again_after_pauses(rig: Rig) -> None:
    rig.refuse(409)
    rig.attach()
    wait_until(lambda: len(rig.server.writes) >= 2 * ATTEMPTS, "two rounds")
    times = [it.at for it in rig.server.writes]
    assert times[ATTEMPTS] - times[ATTEMPTS - 1] >= 0.09
    rig.serve()
    rig.await_reason("Attached")


def test_a_claim_that_is_gone_or_another_one_is_given_up(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.allocate(2)
    rig.server.claims[path_of(2)]["metadata"]["uid"] = "another"
    rig.writer.prepared(claim_name(2))
    del rig.server.claims[path_of()]
    rig.attach()
    rig.attach(2)
    wait_until(lambda: not rig.writer.known, "both to be forgotten")
    settle(rig)
    assert rig.server.writes == []
    assert "claim status" not in caplog.text


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "cannot patch"), (422, 'changing status.devices requires resource="resourceclaims/driver"')],
)
def test_a_missing_right_is_said_once_with_its_name_and_tried_again_slowly(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, status: int, message: str
) -> None:
    monkeypatch.setattr(reporting, "LAST_PAUSE_S", 3.0)
    rig.allocate(1, 2)
    rig.writer.prepared(claim_name(2))
    rig.refuse(status, message)
    rig.attach()
    rig.attach(2)
    wait_until(lambda: len(rig.server.writes) == 2, "both tries")
    time.sleep(0.5)
    assert len(rig.server.writes) == 2
    (said,) = [it for it in caplog.records if "claim status is not written" in it.message]
    assert "associated-node: with both of resourceclaims/driver" in said.__dict__["missing"]
    assert said.__dict__["hint"].startswith("run `helm upgrade`, or without the chart apply the output of ")
    assert said.exc_info is None  # no bug of ours
    rig.serve()
    rig.await_reason("Attached")
    rig.await_reason("Attached", 2)


def test_a_claim_that_is_invalid_is_said_once_and_keeps_no_other_one_away(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "LAST_PAUSE_S", 0.1)
    rig.allocate(1, 2)
    rig.writer.prepared(claim_name(2))

    rig.server.answer = partial(find_first_wrong, rig)
    rig.attach()
    wait_until(lambda: len(rig.server.writes) >= 3, "some tries")
    rig.attach(2)
    rig.await_reason("Attached", 2)
    tries = len(rig.server.writes)
    wait_until(lambda: len(rig.server.writes) > tries + 2, "more tries")
    assert caplog.text.count("claim status is not written") == 1


def find_first_wrong(rig: Rig, handler: BaseHTTPRequestHandler, seen: Seen) -> bool:
    """Answer as an API server does that finds the status of the first claim invalid."""
    if seen.path == f"{path_of(1)}/status":
        return send(handler, 422, {"message": "an entry is wrong"})
    version = rig.server.claims[path_of(1)]["metadata"]["resourceVersion"]
    return seen.accept == PROTOBUF and send(handler, 200, b"k8s\x00" + message(2, message(1, text(6, version))))


def fail(_rig: Rig, handler: BaseHTTPRequestHandler, _seen: Seen) -> bool:
    """Answer as an API server does that has lost its storage."""
    return send(handler, 503, {"message": "no storage"})


@pytest.mark.parametrize("answer", [find_first_wrong, fail])
def test_an_error_that_comes_again_after_a_success_is_said_again(
    rig: Rig,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Rig, BaseHTTPRequestHandler, Seen], bool],
) -> None:
    monkeypatch.setattr(reporting, "LAST_PAUSE_S", 0.1)
    for times in (1, 2):
        rig.server.answer = partial(answer, rig)
        rig.attach()
        wait_until(lambda times=times: caplog.text.count("claim status is not written") == times, "the error")  # type: ignore[misc] # a loop's value
        rig.serve()
        rig.await_reason("Attached")
        rig.end()
        rig.await_reason("Returned")


def test_without_an_api_server_it_tries_again_after_growing_pauses_and_writes_the_newest_state(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "LAST_PAUSE_S", 0.5)
    rig.refuse(503, method="GET")
    rig.attach()
    wait_until(lambda: len(rig.server.seen) >= 4, "some tries")
    rig.attach(rdma_device="mlx5_9")
    times = [it.at for it in rig.server.seen][:4]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses[0] >= 0.09
    assert pauses[1] >= 0.19
    assert pauses[2] >= 0.38
    rig.serve()
    wait_until(lambda: "mlx5_9" in rig.condition()[2], "the newest state")
    assert len(rig.server.writes) == 1
    assert caplog.text.count("claim status is not written") == 1


def test_what_was_attached_and_returned_while_the_api_server_was_away_is_said(rig: Rig) -> None:
    rig.refuse(503, method="GET")
    rig.attach()
    wait_until(lambda: len(rig.server.seen) >= 2, "a try")
    rig.end()
    rig.writer.unprepared(claim_name())
    rig.serve()
    rig.await_reason("Returned")
    wait_until(lambda: not rig.writer.known, "that it is forgotten")


def test_a_state_that_cannot_be_read_is_logged_with_its_trace_and_read_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.is_broken = True
    rig.attach()
    wait_until(lambda: rig.broken_reads >= 2, "a second try")
    rig.is_broken = False
    rig.await_reason("Attached")
    (said,) = [it for it in caplog.records if "claim status is not written" in it.message]
    assert said.exc_info is not None


def test_specs_that_cannot_be_read_at_the_start_are_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.attach()
    rig.await_reason("Attached")
    rig.writer.close()
    rig.states.clear()
    specify(rig)
    left = iter([True])

    def limited(folders: list[Path]) -> FolderScan:
        if next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return scan(folders)

    monkeypatch.setattr(reporting, "scan", limited)
    rig.writer = rig.another()
    rig.writer.start()
    wait_until(lambda: rig.writer.known == ("u1",), "the claim of the daemon before")


def test_what_is_unprepared_and_was_never_noted_is_no_longer_ready(rig: Rig) -> None:
    """The daemon before wrote no name into the spec."""
    rig.attach()
    rig.await_reason("Attached")
    rig.writer.close()
    rig.states.clear()
    rig.writer = rig.another()
    rig.writer.start()
    rig.writer.unprepared(claim_name())
    rig.await_reason("Returned")
    wait_until(lambda: not rig.writer.known, "that it is forgotten")


def test_nobody_waits_for_an_api_server_that_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [it.daemon for it in threading.enumerate() if it.name == "claim-status"] == [True]  # nor does the process
    monkeypatch.setattr(reporting, "CLOSE_S", 0.3)
    rig.server.answer = lambda _handler, _seen: rig.server.is_over.wait(30)
    rig.attach()
    wait_until(lambda: bool(rig.server.seen), "a call that hangs")
    began = time.monotonic()
    rig.attach()
    rig.writer.refused(claim_name(2), "no")
    rig.writer.prepared(claim_name(3))
    rig.writer.unprepared(claim_name(3))
    rig.writer.close()
    assert time.monotonic() - began < 5, "the call hangs for ten seconds"


def test_no_more_claims_are_remembered_than_a_node_has(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "KEPT", 3)
    rig.refuse(503, method="GET")
    for number in range(1, 10):
        rig.writer.refused(claim_name(number), "no")
    assert [*rig.writer.known] == ["u7", "u8", "u9"]


def specify(rig: Rig) -> None:
    """Have a CDI spec of the claim, as Prepare leaves it."""
    request = ClaimRequest(name="nic", devices=("d1",), pool="node-a", parameters={}, from_claim={})
    admitted = AdmittedClaim(request=request, devices=(nic(0),), pool="rails", mode=Mode.SHARED, text="{}")
    named = claim_name()
    made = Claim(namespace=named.namespace, name=named.name, uid=named.uid, label=named.name, requests=(request,))
    spec = claim_spec(made, [admitted], None, SpecStyle(prefix=OURS, hook=None))
    write_spec(spec, rig.folder / "cdi", spec_file("u1"))


@pytest.fixture
def follow(rig: Rig) -> Iterator[Callable[[], StatusWriter]]:
    """Starts the writer of the next daemon, when the first one has ended."""
    made: list[StatusWriter] = []

    def start() -> StatusWriter:
        rig.writer.close()
        made.append(rig.another())
        rig.writer = made[-1]
        rig.writer.start()
        return rig.writer

    yield start
    for it in made:
        it.close()


def test_a_daemon_that_starts_says_what_has_ended_without_it(rig: Rig, follow: Callable[[], StatusWriter]) -> None:
    specify(rig)
    rig.attach()
    rig.await_reason("Attached")
    rig.writer.close()
    rig.end()
    follow()
    rig.await_reason("Returned")


def test_a_daemon_that_starts_knows_what_is_attached_and_writes_nothing(
    rig: Rig, follow: Callable[[], StatusWriter]
) -> None:
    specify(rig)
    rig.attach()
    rig.await_reason("Attached")
    follow()
    settle(rig)
    assert len(rig.server.writes) == 1
    rig.end()
    rig.await_reason("Returned")


def test_specs_of_others_and_of_older_daemons_are_passed_over(rig: Rig, follow: Callable[[], StatusWriter]) -> None:
    specify(rig)
    text = (rig.folder / "cdi" / spec_file("u1")).read_text()
    (rig.folder / "cdi" / "others.json").write_text(text)
    (rig.folder / "cdi" / spec_file("u3")).write_text(text.replace("claims.noderesource.dev/name", "example.com/x"))
    (rig.folder / "cdi" / "broken.json").write_text("{")
    follow()
    wait_until(lambda: [*rig.writer.known] == ["u1"], "the claim")


def test_what_nobody_reports_is_found_by_looking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LOOK_S", 0.2)
    made = rig.another()
    made.prepared(claim_name())
    settle(rig)
    made.start()
    settle(rig)  # what it was told of is compared
    given = GivenDevice(device="d1", rdma_device="mlx5_0", nodes=(), mode=Mode.SHARED)
    rig.states[cdi()] = CdiState(given=(given,))
    rig.await_reason("Attached")
    made.close()


def test_what_was_never_started_can_be_closed_and_does_not_start_then(rig: Rig) -> None:
    made = rig.another()
    made.close()
    made.close()
    made.start()
    assert not made.runs


def test_prepared_claims_are_counted_by_what_became_of_their_devices(rig: Rig) -> None:
    rig.allocate(*range(1, 6))
    for number in range(2, 6):
        rig.writer.prepared(claim_name(number))
    assert rig.writer.counted() == PreparedClaims(waiting=5)
    rig.attach(1)
    rig.writer.news(frozenset({cdi(2)}), "no such interface")
    rig.states[cdi(3)] = CdiState(is_returning=True)
    rig.writer.unprepared(claim_name(5))
    assert rig.writer.counted() == PreparedClaims(attached=1, failed=1, returning=1, waiting=1)
    rig.attach(2)
    assert rig.writer.counted() == PreparedClaims(attached=2, returning=1, waiting=1)
