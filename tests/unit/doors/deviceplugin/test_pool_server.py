"""A pool's server, called by a kubelet over real gRPC."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from nri_rdma.decide.placement import Holding
from nri_rdma.doors.deviceplugin.pool_server import PoolServer, endpoint_of
from nri_rdma.errors import KubeletError
from nri_rdma.model.device import Node
from nri_rdma.model.request import Mode
from nri_rdma.observe.spans import Recorder
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.rig.dial import dial
from tests.unit.doors.deviceplugin.pools import NIC, RESOURCE, pool, pool_of_devices, supply
from tests.unit.doors.deviceplugin.test_answers import down
from tests.unit.model.hardware import eight

ALLOCATED: list[tuple[str, list[str]]] = []
NODES: list[Node] = []
"""As it was read, the last one is now."""
SPANS = Recorder()
"""What the server of the fixture counts."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "plugins"


@pytest.fixture
def manager(folder: Path) -> Iterator[FakeDeviceManager]:
    with FakeDeviceManager(folder) as made:
        yield made


@pytest.fixture
def served(folder: Path, manager: FakeDeviceManager) -> Iterator[PoolServer]:
    ALLOCATED.clear()
    NODES[:] = [eight()]
    one = pool(4)
    server = PoolServer(
        one,
        folder,
        lambda: supply(one, node=NODES[-1]),
        lambda resource, shares: ALLOCATED.append((resource, shares)),
        SPANS,
    )
    server.serve()
    wait_until(lambda: RESOURCE in manager.plugins, "the list")
    yield server
    server.close()


def test_it_registers_by_the_name_of_its_socket(manager: FakeDeviceManager, served: PoolServer) -> None:
    assert served.is_there
    (told,) = manager.registrations
    assert (told[1], told[2], told[3]) == (b"v1beta1", b"nri-rdma_hcas.sock", RESOURCE.encode())
    assert manager.plugins[RESOURCE].devices == {f"hcas-{number}": "Healthy" for number in range(4)}


def test_a_server_that_listens_anew_has_ended_what_was_before(manager: FakeDeviceManager, served: PoolServer) -> None:
    before = manager.plugins[RESOURCE]
    served.serve()
    assert before.is_over.wait(30)
    wait_until(lambda: manager.plugins[RESOURCE] is not before, "the next list")


def test_an_allocation_is_a_span_with_the_shares(manager: FakeDeviceManager, served: PoolServer) -> None:
    manager.allocate(RESOURCE, ("hcas-3",), ("hcas-0", "hcas-1"))
    span = SPANS.recent()[-1]
    assert (span.name, span.error) == ("Allocate", "")
    assert span.attributes == {"rdma.pool": "hcas", "rdma.resource": RESOURCE, "rdma.shares": "hcas-3,hcas-0,hcas-1"}


def test_an_allocation_is_noted_before_it_is_answered(manager: FakeDeviceManager, served: PoolServer) -> None:
    first, second = manager.allocate(RESOURCE, ("hcas-3",), ("hcas-0", "hcas-1"))
    assert ALLOCATED == [(RESOURCE, ["hcas-3", "hcas-0", "hcas-1"])]
    assert b"rdma/hca_shared=hcas-3" in first[0][1]
    assert b"rdma/hca_shared=hcas-0,hcas-1" in second[0][1]


def test_a_change_of_health_is_told_once(manager: FakeDeviceManager, served: PoolServer) -> None:
    plugin = manager.plugins[RESOURCE]
    NODES.append(down(eight(), *range(7)))
    served.tell_changes()
    wait_until(lambda: list(plugin.devices.values()).count("Healthy") == 1, "the change")
    served.tell_changes()
    NODES.append(eight())
    served.tell_changes()
    wait_until(lambda: list(plugin.devices.values()).count("Healthy") == 4, "the recovery")
    assert plugin.lists == 3


def test_lists_that_a_kubelet_has_left_keep_no_other_call_waiting(
    folder: Path, manager: FakeDeviceManager, served: PoolServer
) -> None:
    for _ in range(8):  # more than there are threads
        with dial(folder / endpoint_of(served.pool)) as channel:
            told = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"", timeout=5)
            assert next(told)
            told.cancel()
    assert manager.allocate(RESOURCE, ("hcas-3",))


def test_what_is_no_request_is_refused_and_notes_nothing(manager: FakeDeviceManager, served: PoolServer) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        manager.call(RESOURCE, "Allocate", b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ALLOCATED == []


def test_the_end_ends_the_list_and_takes_the_socket_away(
    folder: Path, manager: FakeDeviceManager, served: PoolServer
) -> None:
    plugin = manager.plugins[RESOURCE]
    served.close()
    assert plugin.is_over.wait(30)
    assert not (folder / endpoint_of(served.pool)).exists()
    served.close()


@pytest.mark.parametrize(("said", "then"), [(None, "ERROR"), ("DEBUG", "DEBUG")])
def test_grpc_writes_nothing_but_errors_past_our_log_unless_somebody_wants_it(
    manager: FakeDeviceManager, folder: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, then: str
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", said or "")
    if said is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    server = PoolServer(
        pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
    )
    server.serve()
    assert os.environ["GRPC_VERBOSITY"] == then
    server.close()


def test_without_a_kubelet_nobody_listens_and_the_error_names_its_socket(folder: Path) -> None:
    folder.mkdir()
    server = PoolServer(
        pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
    )
    with pytest.raises(KubeletError, match=r"KUBELET-UNREACHABLE: rdma/hca_shared is not registered") as caught:
        server.serve()
    assert caught.value.where == str(folder / "kubelet.sock")
    assert not server.is_there


def test_a_socket_whose_path_is_too_long_is_told_with_its_length(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 100)
    folder.mkdir()
    server = PoolServer(
        pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
    )
    size = len(str(folder / "nri-rdma_hcas.sock"))
    with pytest.raises(KubeletError, match=rf"the path has {size} bytes, and Linux takes 107.* Next: give the pool a"):
        server.serve()


def test_a_socket_whose_path_is_just_short_enough_is_told_with_the_reason_of_the_system() -> None:
    with TemporaryDirectory(prefix="nri-") as short:
        folder = Path(short) / ("f" * (107 - len(f"{short}//nri-rdma_hcas.sock")))  # it is not there
        server = PoolServer(
            pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
        )
        with pytest.raises(KubeletError, match=f"cannot listen at {folder}/nri-rdma_hcas.sock") as caught:
            server.serve()
    assert "bytes" not in str(caught.value)
    assert "see that the kubelet runs" in caught.value.hint


@pytest.mark.parametrize("place", ["plugins/hca_shared.sock", "plugins_registry/hca_shared.sock"])
def test_a_resource_that_the_shared_device_plugin_serves_is_not_served_until_it_has_ended(
    tmp_path: Path, folder: Path, manager: FakeDeviceManager, place: str
) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    server = PoolServer(
        pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
    )
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        with pytest.raises(KubeletError, match=r"RESOURCE-TAKEN: rdma/hca_shared is served by another") as caught:
            server.serve()
        assert caught.value.where == str(path)
        assert manager.registrations == []
    server.serve()  # it was killed: its socket is still there
    wait_until(lambda: RESOURCE in manager.plugins, "the list")
    server.close()


def test_a_socket_that_an_earlier_daemon_left_is_replaced(folder: Path, manager: FakeDeviceManager) -> None:
    left = folder / endpoint_of(pool())
    left.write_text("")
    server = PoolServer(
        pool(), folder, lambda: supply(pool(), node=eight()), lambda _resource, _shares: None, Recorder()
    )
    server.serve()
    wait_until(lambda: RESOURCE in manager.plugins, "the list")
    server.close()


@pytest.fixture
def devices(folder: Path, manager: FakeDeviceManager) -> Iterator[PoolServer]:
    """The pool of devices of the node "eight", served."""
    NODES[:] = [eight()]
    one = pool_of_devices()
    server = PoolServer(one, folder, lambda: supply(one, node=NODES[-1]), lambda _resource, _ids: None, Recorder())
    server.serve()
    wait_until(lambda: NIC in manager.plugins, "the list")
    yield server
    server.close()


def test_a_pool_of_devices_says_in_both_places_that_it_wants_to_be_asked(
    manager: FakeDeviceManager, devices: PoolServer
) -> None:
    assert manager.plugins[NIC].prefers
    (told,) = manager.registrations
    assert told[4] == b"\x10\x01"
    with pytest.raises(grpc.RpcError) as caught:
        manager.call(NIC, "GetPreferredAllocation", b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_pool_of_shares_does_not(manager: FakeDeviceManager, served: PoolServer) -> None:
    assert not manager.plugins[RESOURCE].prefers


def test_the_kubelet_is_told_the_numa_nodes_and_which_devices_go_well_together(
    manager: FakeDeviceManager, devices: PoolServer
) -> None:
    ids = [device.id for device in eight().devices]
    assert manager.plugins[NIC].numa_nodes == {it: frozenset({number // 4}) for number, it in enumerate(ids)}
    assert manager.prefer(NIC, (ids[0], ids[6], ids[5]), (), 2) == [ids[5], ids[6]]
    assert manager.prefer(NIC, tuple(ids), (ids[5],), 2) == [ids[5], ids[4]]
    assert manager.admit(NIC, 3, frozenset({1})).ids == tuple(ids[4:7])


def test_a_device_that_a_pod_has_is_preferred_only_where_the_others_are_too_few(
    manager: FakeDeviceManager, folder: Path
) -> None:
    """The kubelet may have lost its checkpoint."""
    one, ids = pool_of_devices(), [device.id for device in eight().devices]
    taken = {it: frozenset({Holding(owner="ns/a", mode=Mode.SHARED, is_sole=True)}) for it in ids[:3]}
    server = PoolServer(
        one, folder, lambda: supply(one, node=eight(), taken=taken), lambda _resource, _ids: None, Recorder()
    )
    server.serve()
    wait_until(lambda: NIC in manager.plugins, "the list")
    assert manager.prefer(NIC, tuple(ids[:4]), (), 1) == [ids[3]]
    assert manager.prefer(NIC, tuple(ids[:4]), (), 2) == [ids[0], ids[1]]
    assert manager.prefer(NIC, tuple(ids[:4]), (ids[1],), 2) == [ids[1], ids[3]]
    server.close()
