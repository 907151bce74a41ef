"""A pool's server, called by a kubelet over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from nri_rdma.doors.deviceplugin.server import PoolServer, endpoint_of
from nri_rdma.errors import KubeletError
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool

ALLOCATED: list[tuple[str, list[str]]] = []


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
    server = PoolServer(pool(4), folder, 4, lambda resource, shares: ALLOCATED.append((resource, shares)))
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
    assert before.is_over.wait(5)
    wait_until(lambda: manager.plugins[RESOURCE] is not before, "the next list")


def test_an_allocation_is_noted_before_it_is_answered(manager: FakeDeviceManager, served: PoolServer) -> None:
    first, second = manager.allocate(RESOURCE, ("hcas-3",), ("hcas-0", "hcas-1"))
    assert ALLOCATED == [(RESOURCE, ["hcas-3", "hcas-0", "hcas-1"])]
    assert b"rdma/hca_shared=hcas-3" in first[0][1]
    assert b"rdma/hca_shared=hcas-0,hcas-1" in second[0][1]


def test_a_change_of_health_is_told_once(manager: FakeDeviceManager, served: PoolServer) -> None:
    plugin = manager.plugins[RESOURCE]
    served.set_healthy(1)
    wait_until(lambda: list(plugin.devices.values()).count("Healthy") == 1, "the change")
    served.set_healthy(1)
    served.set_healthy(4)
    wait_until(lambda: list(plugin.devices.values()).count("Healthy") == 4, "the recovery")
    assert plugin.lists == 3


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
    assert plugin.is_over.wait(5)
    assert not (folder / endpoint_of(served.pool)).exists()
    served.close()


def test_without_a_kubelet_nobody_listens_and_the_error_names_its_socket(folder: Path) -> None:
    folder.mkdir()
    server = PoolServer(pool(), folder, 16, lambda _resource, _shares: None)
    with pytest.raises(KubeletError, match=r"KUBELET-UNREACHABLE: rdma/hca_shared is not registered") as caught:
        server.serve()
    assert caught.value.where == str(folder / "kubelet.sock")
    assert not server.is_there


def test_a_socket_that_an_earlier_daemon_left_is_replaced(folder: Path, manager: FakeDeviceManager) -> None:
    left = folder / endpoint_of(pool())
    left.write_text("")
    server = PoolServer(pool(), folder, 16, lambda _resource, _shares: None)
    server.serve()
    wait_until(lambda: RESOURCE in manager.plugins, "the list")
    server.close()
