"""The kubelet is asked within a budget, and survived whatever it does."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet.podresources import PodResources
from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation
from tests.rig.deadline import wait_until
from tests.rig.kubelet import BURST, Claim, Claimed, FakeKubelet, Given, Mode, message, populate, rude, text

PATIENCE_S = 10.0
"""A budget that a loaded machine does not use up, where the test is not about the budget."""


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    """A kubelet with the pods training/job-0 and training/job-1."""
    with FakeKubelet() as running:
        populate(running, 2)
        yield running


@pytest.fixture
def client(kubelet: FakeKubelet) -> Iterator[PodResources]:
    """A warm client of it."""
    made = PodResources(kubelet.socket, budget_s=PATIENCE_S)
    made.warm()
    kubelet.calls.clear()
    yield made
    made.close()


def refusal(client: PodResources, namespace: str = "training", name: str = "job-0") -> KubeletError:
    with pytest.raises(KubeletError) as caught:
        client.of_pod(namespace, name)
    assert caught.value.hint
    return caught.value


def claimed(number: int, index: int) -> ClaimDevice:
    return ClaimDevice(
        namespace="training",
        claim=f"job-{number}-net",
        driver="net.example",
        pool="node",
        device=f"vf{index}",
        cdi_devices=(f"net.example/vf={number}-{index}",),
    )


def job(number: int) -> PodAllocation:
    """What `populate` gives to a pod."""
    return PodAllocation(
        containers=(
            ContainerAllocation(name="sidecar", resources=(DeviceIds(resource="rdma/hca_shared", ids=(str(number),)),)),
            ContainerAllocation(name="main", claims=(claimed(number, 0), claimed(number, 1))),
        )
    )


# What is told


@pytest.mark.parametrize("mode", [Mode.ANSWERS, Mode.WITHOUT_GET, Mode.GET_OFF])
def test_a_pods_devices_are_told_by_every_kubelet(kubelet: FakeKubelet, client: PodResources, mode: Mode) -> None:
    kubelet.mode = mode
    assert client.of_pod("training", "job-1") == job(1)


@pytest.mark.parametrize("mode", [Mode.ANSWERS, Mode.WITHOUT_GET, Mode.GET_OFF])
def test_a_pod_that_the_kubelet_does_not_know_is_none(kubelet: FakeKubelet, client: PodResources, mode: Mode) -> None:
    kubelet.mode = mode
    assert client.of_pod("training", "job-9") is None
    assert client.of_pod("other", "job-1") is None


def test_a_pod_without_devices_is_not_an_unknown_one(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.add_pod("web", "plain", Given(name="main"))
    told = client.of_pod("web", "plain")
    assert told == PodAllocation(containers=(ContainerAllocation(name="main"),))


def test_pods_that_come_and_go_are_told_as_they_are_now(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.remove_pod("training", "job-0")
    assert client.of_pod("training", "job-0") is None
    kubelet.add_pod("training", "job-0", Given(name="main", resources={"rdma/hca": ("b", "a")}))
    told = client.of_pod("training", "job-0")
    assert told is not None
    assert told.containers[0].resources == (DeviceIds(resource="rdma/hca", ids=("a", "b")),)


def test_get_is_asked_and_the_whole_list_is_not(kubelet: FakeKubelet, client: PodResources) -> None:
    client.of_pod("training", "job-0")
    assert kubelet.calls == ["Get"]


@pytest.mark.parametrize("mode", [Mode.WITHOUT_GET, Mode.GET_OFF])
def test_a_kubelet_without_get_is_asked_for_it_once(kubelet: FakeKubelet, client: PodResources, mode: Mode) -> None:
    kubelet.mode = mode
    client.of_pod("training", "job-0")
    client.of_pod("training", "job-1")
    assert kubelet.calls == ["Get", "List", "List"]


def test_warming_up_learns_whether_there_is_get(kubelet: FakeKubelet) -> None:
    kubelet.mode = Mode.GET_OFF
    client = PodResources(kubelet.socket, budget_s=PATIENCE_S)
    client.warm()
    client.of_pod("training", "job-0")
    client.close()
    assert kubelet.calls == ["Get", "List"]


# Not connected


def test_a_handler_that_comes_before_the_connection_is_told_so_and_imports_no_grpc(kubelet: FakeKubelet) -> None:
    program = f"""
import sys
from pathlib import Path
import nri_rdma.engine.engine
from nri_rdma.errors import KubeletError
from nri_rdma.host.kubelet.podresources import PodResources
try:
    PodResources(Path({str(kubelet.socket)!r})).of_pod("training", "job-0")
except KubeletError as error:
    print(error.code, "not connected yet" in error.what, "grpc" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["KUBELET-UNREACHABLE", "True", "False"]
    assert kubelet.calls == []


def test_without_a_kubelet_warming_up_says_so_and_a_kubelet_that_comes_later_is_found() -> None:
    with FakeKubelet() as kubelet:
        kubelet.stop()
        client = PodResources(kubelet.socket, budget_s=PATIENCE_S)
        with pytest.raises(KubeletError) as caught:
            client.warm()
        assert caught.value.code is ErrorCode.KUBELET_UNREACHABLE
        assert str(kubelet.socket) in caught.value.what
        assert refusal(client).code is ErrorCode.KUBELET_UNREACHABLE
        populate(kubelet, 1)
        kubelet.start()
        assert client.of_pod("training", "job-0") == job(0)
        client.close()


def test_a_kubelet_that_was_started_anew_is_found_again(kubelet: FakeKubelet, client: PodResources) -> None:
    assert client.of_pod("training", "job-0") == job(0)
    for _ in range(3):
        kubelet.stop()
        kubelet.start()
        assert client.of_pod("training", "job-0") == job(0)


def test_what_was_asked_while_the_kubelet_was_away_does_not_delay_its_return(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.stop()
    for _ in range(5):
        assert refusal(client).code is ErrorCode.KUBELET_UNREACHABLE
    kubelet.start()
    assert client.of_pod("training", "job-0") == job(0)


def test_a_new_kubelet_is_asked_whether_it_has_get(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.mode = Mode.GET_OFF
    client.of_pod("training", "job-0")
    kubelet.stop()
    refusal(client)
    kubelet.mode = Mode.ANSWERS
    kubelet.start()
    kubelet.calls.clear()
    client.of_pod("training", "job-0")
    assert kubelet.calls == ["Get"]


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 4096])
def test_who_speaks_no_grpc_is_no_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    monkeypatch.chdir(tmp_path)  # a relative path, because the absolute one may be too long for a socket
    with rude(Path("k"), says):
        client = PodResources(Path("k"), budget_s=0.5)
        with pytest.raises(KubeletError):
            client.warm()
        assert refusal(client).code in {ErrorCode.KUBELET_UNREACHABLE, ErrorCode.KUBELET_LATE}
        client.close()


def test_a_path_with_blanks_and_percent_signs_is_that_path(
    kubelet: FakeKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a %41#?b").symlink_to(kubelet.socket)
    client = PodResources(Path("a %41#?b"), budget_s=PATIENCE_S)
    client.warm()
    assert client.of_pod("training", "job-0") == job(0)
    client.close()


def test_a_path_that_no_socket_can_have_is_refused_as_unreachable(tmp_path: Path) -> None:
    client = PodResources(tmp_path / ("long" * 60))
    with pytest.raises(KubeletError) as caught:
        client.warm()
    assert caught.value.code is ErrorCode.KUBELET_UNREACHABLE


# Late


def test_a_kubelet_that_hangs_costs_the_budget_and_no_more(kubelet: FakeKubelet) -> None:
    client = PodResources(kubelet.socket)
    client.warm()
    kubelet.mode = Mode.HANGS
    begin = time.monotonic()
    assert refusal(client).code is ErrorCode.KUBELET_LATE
    assert time.monotonic() - begin < PATIENCE_S / 2  # 50 ms; it hangs for ever
    kubelet.mode = Mode.ANSWERS
    wait_until(lambda: _told(client), "an answer on the same connection")
    client.close()


def _told(client: PodResources) -> PodAllocation | None:
    try:
        return client.of_pod("training", "job-0")
    except KubeletError:
        return None


def test_both_calls_share_one_budget(kubelet: FakeKubelet) -> None:
    client = PodResources(kubelet.socket, budget_s=3)
    client.warm()
    kubelet.delay_s = 2
    kubelet.modes = {"Get": Mode.GET_OFF, "List": Mode.HANGS}
    begin = time.monotonic()
    assert refusal(client).code is ErrorCode.KUBELET_LATE
    took_s = time.monotonic() - begin
    client.close()
    assert kubelet.calls[1:] == ["Get", "List"]
    assert 2.99 < took_s < 4.8, "a budget for each would be 5 s"


def test_a_call_that_the_rate_limit_refuses_is_made_again(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.mode = Mode.RATE_LIMITED
    calls = 3 * int(BURST)
    for _ in range(calls):
        assert client.of_pod("training", "job-0") == job(0)
    assert len(kubelet.calls) >= calls


def test_a_rate_limit_that_does_not_end_is_late_within_the_budget() -> None:
    with FakeKubelet(mode=Mode.RATE_LIMITED, clock=lambda: 0.0) as kubelet:  # no token ever comes back
        client = PodResources(kubelet.socket, budget_s=0.5)
        client.warm()
        for _ in range(int(BURST) - 1):
            assert client.of_pod("training", "job-0") is None
        begin = time.monotonic()
        error = refusal(client)
        assert time.monotonic() - begin < PATIENCE_S / 2
        client.close()
    assert error.code is ErrorCode.KUBELET_LATE
    assert "too many calls" in error.what
    assert len(kubelet.calls) <= BURST + 50  # half a second has room for fifty


# Answers that are none


def test_an_error_that_we_do_not_know_is_no_answer(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.mode = Mode.FAILS
    error = refusal(client)
    assert error.code is ErrorCode.KUBELET_ANSWER
    assert "INTERNAL" in error.what
    assert error.detail == "the checkpoint is corrupt"


@pytest.mark.parametrize("mode", [Mode.ANSWERS, Mode.GET_OFF])
def test_bytes_that_are_no_message_are_no_answer(kubelet: FakeKubelet, client: PodResources, mode: Mode) -> None:
    kubelet.mode = mode
    kubelet.payloads = {"Get": b"\xff\xff\xff", "List": b"\xff\xff\xff"}
    assert refusal(client).code is ErrorCode.KUBELET_ANSWER


def test_more_than_16_mib_are_no_answer_and_no_rate_limit(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.payloads = {"Get": message(1, text(1, "x" * (16 << 20)))}
    error = refusal(client)
    assert error.code is ErrorCode.KUBELET_ANSWER
    assert kubelet.calls == ["Get"]


def test_names_that_are_no_cdi_devices_are_left_out(kubelet: FakeKubelet, client: PodResources) -> None:
    devices = (Claimed(driver="d", pool="p", device="x", cdi=("nvidia.com/gpu=0", "../etc", "", "a/b", "ve/cl=ok")),)
    kubelet.add_pod("web", "odd", Given(name="main", claims=(Claim(namespace="web", name="c", devices=devices),)))
    told = client.of_pod("web", "odd")
    assert told is not None
    assert told.containers[0].cdi_devices == ("nvidia.com/gpu=0", "ve/cl=ok")
    assert told.named == {"main"}


# The end


def test_closing_ends_a_call_that_waits(kubelet: FakeKubelet, client: PodResources) -> None:
    kubelet.mode = Mode.HANGS
    errors: list[KubeletError] = []

    def ask() -> None:
        try:
            client.of_pod("training", "job-0")
        except KubeletError as error:
            errors.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(lambda: "Get" in kubelet.calls, "the call has arrived")
    client.close()
    waiting.join(PATIENCE_S / 2)
    assert [error.code for error in errors] == [ErrorCode.KUBELET_UNREACHABLE]
    client.close()
    assert "ending" in refusal(client).what
