"""The driver's two sockets, called as a kubelet calls them: real gRPC."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from nri_rdma.doors.dra.dra_server import DraServer
from nri_rdma.errors import KubeletError
from nri_rdma.pb import dra_pb2 as dra
from nri_rdma.pb import pluginregistration_pb2 as registration
from tests.unit.doors.dra.claimed import NOTIFY, OURS, PREPARE, UNPREPARE, Claimed, asked, call, kubelet_folder

TRACED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
"""Metadata of a call of a kubelet that traces."""
INFO = "/pluginregistration.Registration/GetInfo"


@pytest.fixture
def registered() -> list[str]:
    """What the kubelet told us of our registration."""
    return []


@pytest.fixture
def folder() -> Iterator[Path]:
    """The kubelet's, for drivers."""
    with kubelet_folder() as made:
        yield made / "plugins"


@pytest.fixture
def served(node: Claimed, folder: Path, registered: list[str]) -> Iterator[DraServer]:
    server = DraServer(folder, node.preparer, lambda: registered.append("registered"), node.daemon.spans)
    server.serve()
    yield server
    server.close()


def registrar(folder: Path) -> Path:
    return folder.parent / "plugins_registry" / f"{OURS}-reg.sock"


def prepare(folder: Path, *claims: tuple[str, str]) -> dra.NodePrepareResourcesResponse:
    data = call(folder / OURS / "dra.sock", PREPARE, asked(dra.NodePrepareResourcesRequest, *claims))
    return dra.NodePrepareResourcesResponse.FromString(data)


def test_the_kubelet_is_told_name_version_and_endpoint(served: DraServer, folder: Path) -> None:
    told = registration.PluginInfo.FromString(call(registrar(folder), INFO, b""))
    assert (told.type, told.name, list(told.supported_versions)) == ("DRAPlugin", OURS, ["v1.DRAPlugin"])
    assert Path(told.endpoint).is_socket()


def test_a_registration_is_heard_and_a_refusal_is_logged_with_its_error(
    served: DraServer, folder: Path, registered: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    socket = registrar(folder)
    assert served.registration.error == f"the kubelet has not called {socket} yet"
    refused, unsaid = "the kubelet refuses the driver: too old", "the kubelet refuses the driver: the kubelet does not"
    since = served.registration.since
    for status, error in (
        ({"plugin_registered": False, "error": "too old"}, refused),
        ({}, f"{unsaid} say why"),
        ({"plugin_registered": True}, ""),
    ):
        data = registration.RegistrationStatus(**status).SerializeToString()
        call(socket, NOTIFY, data)
        assert served.registration.error == error
        assert (served.registration.since == since) == bool(error)  # another reason is no change
        assert len(registered) == (1 if status.get("plugin_registered") else 0)
    told = [vars(it)["error"] for it in caplog.records if it.levelname == "ERROR"]
    assert told == ["too old", "the kubelet does not say why"]


def test_each_claim_has_its_own_answer(
    served: DraServer, folder: Path, node: Claimed, caplog: pytest.LogCaptureFixture
) -> None:
    node.allocate("mlx5_3", "mlx5_1")
    told = prepare(folder, ("rails", "u1"), ("absent", "u9"))
    good, bad = told.claims["u1"], told.claims["u9"]
    assert [(list(it.request_names), it.pool_name, list(it.cdi_device_ids)) for it in good.devices] == [
        (["nic"], "node-a", [f"{OURS}/claim=u1-nic"]),
        (["nic"], "node-a", []),
    ]
    assert (good.error, list(bad.devices)) == ("", [])
    assert "API-SERVER: the API server answers 404 to GET" in bad.error
    logged = [vars(it) for it in caplog.records if it.message == "a claim is not prepared"]
    assert [(it["claim"], it["error"], it["exc_info"]) for it in logged] == [("team/absent", bad.error, None)]


def test_each_claim_of_a_call_is_a_span_with_its_steps_and_the_kubelets_trace(
    served: DraServer, folder: Path, node: Claimed
) -> None:
    node.allocate("mlx5_3", "mlx5_1")
    prepare(folder, ("rails", "u1"), ("absent", "u9"))
    call(folder / OURS / "dra.sock", UNPREPARE, asked(dra.NodeUnprepareResourcesRequest, ("rails", "u1")), TRACED)
    spans = node.daemon.spans.recent()
    good, bad, ended = (it for it in spans if it.name.endswith("Resources"))
    if good.error:
        good, bad = bad, good
    assert (good.attributes["rdma.claim"], good.error, bad.attributes["rdma.claim.uid"]) == ("team/rails", "", "u9")
    assert bad.error.startswith("nri-rdma: API-SERVER: ")
    assert [it.name for it in spans if it.parent_id == good.span_id] == ["get claim", "admit", "write spec"]
    assert f"{ended.trace_id:032x}-{ended.parent_id:016x}" in TRACED["traceparent"]


def test_a_claim_of_another_driver_is_answered_without_devices(served: DraServer, folder: Path, node: Claimed) -> None:
    node.allocate("g0", driver="gpu.example.com")
    told = prepare(folder, ("rails", "u1"))
    assert list(told.claims) == ["u1"]
    assert (list(told.claims["u1"].devices), told.claims["u1"].error) == ([], "")


def test_a_claim_that_nobody_can_read_is_an_error_of_that_claim(
    served: DraServer, folder: Path, node: Claimed, caplog: pytest.LogCaptureFixture
) -> None:
    node.allocate("mlx5_3")
    del next(iter(node.told.values()))["metadata"]
    assert "nri-rdma: API-SERVER: " in prepare(folder, ("rails", "u1")).claims["u1"].error
    (told,) = (it for it in caplog.records if it.message == "a claim is not prepared")
    assert told.exc_info is None


def test_unpreparing_twice_is_no_error(served: DraServer, folder: Path, node: Claimed) -> None:
    node.allocate("mlx5_3")
    prepare(folder, ("rails", "u1"))
    for _ in range(2):
        data = asked(dra.NodeUnprepareResourcesRequest, ("rails", "u1"))
        answer = call(folder / OURS / "dra.sock", UNPREPARE, data)
        told = dra.NodeUnprepareResourcesResponse.FromString(answer)
        assert (list(told.claims), told.claims["u1"].error, node.specs) == (["u1"], "", [])


def test_what_is_no_message_is_refused(served: DraServer, folder: Path) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(folder / OURS / "dra.sock", PREPARE, b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_it_listens_anew_over_a_socket_that_was_left_and_notices_one_that_was_removed(
    served: DraServer, folder: Path
) -> None:
    seen = [served.is_there]
    registrar(folder).unlink()
    seen.append(served.is_there)
    registrar(folder).write_text("left")
    served.serve()
    assert [*seen, served.is_there] == [True, False, True]
    assert [it.name for it in registrar(folder).parent.iterdir()] == [f"{OURS}-2-reg.sock"]


def test_who_finds_the_sockets_of_a_daemon_that_was_killed_takes_other_names_and_removes_them(
    served: DraServer, node: Claimed, folder: Path
) -> None:
    """The kubelet would unregister them first, and look again a second later."""
    registry = registrar(folder).parent
    with ExitStack() as after:
        for mark in ("-2", ""):
            server = DraServer(folder, node.preparer, lambda: None, node.daemon.spans)
            after.callback(server.close)
            server.serve()
            assert [it.name for it in registry.iterdir()] == [f"{OURS}{mark}-reg.sock"]
            told = registration.PluginInfo.FromString(call(registry / f"{OURS}{mark}-reg.sock", INFO, b""))
            assert [*(folder / OURS).iterdir()] == [Path(told.endpoint)] == [folder / OURS / f"dra{mark}.sock"]
    assert [*registry.iterdir()] == [*(folder / OURS).iterdir()] == []


def test_closing_removes_both_sockets_and_again_is_no_error(served: DraServer, folder: Path) -> None:
    for _ in range(2):
        served.close()
        assert not registrar(folder).exists()
        assert not (folder / OURS / "dra.sock").exists()
        assert not served.is_there


def test_without_the_kubelets_registry_nobody_listens(node: Claimed, folder: Path) -> None:
    registrar(folder).parent.rmdir()
    server = DraServer(folder, node.preparer, lambda: None, node.daemon.spans)
    with pytest.raises(KubeletError, match="cannot listen for the kubelet") as caught:
        server.serve()
    assert f"there is no {registrar(folder).parent}" in str(caught.value)
    assert not server.is_there
    assert not (folder / OURS / "dra.sock").exists()


def test_where_one_socket_cannot_be_made_the_other_is_removed(node: Claimed, folder: Path) -> None:
    registrar(folder).mkdir()
    with pytest.raises(KubeletError, match="cannot listen for the kubelet"):
        DraServer(folder, node.preparer, lambda: None, node.daemon.spans).serve()
    assert not (folder / OURS / "dra.sock").exists()


def test_who_is_connected_when_it_listens_anew_has_to_connect_again(served: DraServer, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.settimeout(5.0)
        earlier.connect(str(registrar(folder)))
        served.serve()
        with suppress(ConnectionResetError):
            while earlier.recv(4096):  # until its end
                pass


@pytest.mark.parametrize(("said", "then"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_grpc_writes_nothing_but_errors_past_our_log_unless_somebody_wants_it(
    node: Claimed, folder: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, then: str
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", said or "")
    if said is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    server = DraServer(folder, node.preparer, lambda: None, node.daemon.spans)
    server.serve()
    assert os.environ["GRPC_VERBOSITY"] == then
    server.close()
