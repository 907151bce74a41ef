"""The doctor on the daemon, its state directory, CDI files and other programs that configure links."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.attach.journal import Journal
from nri_rdma.commands.doctor import guard, service
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.doors.control import daemon_client
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_no_daemon_is_not_applicable_and_no_guard_a_warning(bench: Bench) -> None:
    found = bench.finds(service.daemon)
    assert (found.result, found.fix) == (NA, "nri-rdma run")
    assert bench.finds(guard.guard).result is WARNING


def test_a_daemon_without_a_runtime_is_a_problem(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = daemon.settings
    found = bench.finds(service.daemon)
    assert (found.result, "disconnected from the runtime" in found.found) == (PROBLEM, True)
    assert bench.finds(guard.guard).result is WARNING


def _well(machine: Machine) -> dict[str, Any]:
    """The status that the machine's daemon gives, as if the runtime had told it its pods."""
    document: Any = machine.daemon
    document["runtime"] |= {"link": "synchronized", "error": ""}
    return dict(document)


def test_a_daemon_that_is_well_is_fine_and_its_ills_are_told(bench: Bench, daemon: InsideDaemon) -> None:
    bench.settings = daemon.settings
    machine = bench.machine
    status = _well(machine)
    assert service.daemon(machine).result is OK
    vars(machine)["daemon"] = status | {"daemon": status["daemon"] | {"version": "0.0.1"}}
    assert service.daemon(machine).result is WARNING
    vars(machine)["daemon"] = status | {"reload_error": "nri-rdma: SETTING: bad"}
    assert service.daemon(machine).result is WARNING
    vars(machine)["daemon"] = status | {"troubles": [{"part": "traces", "why": "no exporter"}]}
    found = service.daemon(machine)
    assert (found.result, "without: traces: no exporter" in found.found) == (PROBLEM, True)
    vars(machine)["daemon"] = status | {"unserved": [{"pod": "ml/train", "why": "late"}]}
    assert "pods run without what they ask for: ml/train" in service.daemon(machine).found
    vars(machine)["daemon"] = status | {"sandboxes": [{"pod": "ml/train", "undo_error": "EBUSY"}]}
    assert "devices of ml/train are not back on the host: EBUSY" in service.daemon(machine).found
    vars(machine)["daemon"] = status | {"guard": {"active": "createRuntime hook", "asked": 4}}
    assert guard.guard(machine).found.startswith("the daemon was asked about 4 containers. Not known: ")


def test_a_state_directory_on_a_tmpfs_is_fine_and_none_is_made(bench: Bench) -> None:
    found = bench.finds(service.state)
    assert (found.result, found.found.endswith("is writable, on tmpfs")) == (OK, True)
    assert not bench.settings.state_dir.exists()
    bench.mounts("ext4")
    assert bench.finds(service.state).result is WARNING


def test_journal_records_that_were_set_aside_are_a_problem(bench: Bench) -> None:
    journal = bench.settings.state_dir / "journal"
    Journal(journal)
    (journal / "abc.json").write_text("{")
    Journal(journal).load()
    found = bench.finds(service.state)
    assert (found.result, "abc.unreadable" in found.found) == (PROBLEM, True)


def test_what_an_earlier_daemon_did_and_cannot_be_read_is_a_warning(bench: Bench) -> None:
    bench.write("run/nri-rdma/past.jsonl.unreadable", "{")
    found = bench.finds(service.state)
    assert (found.result, "past.jsonl.unreadable" in found.found) == (WARNING, True)


def test_a_state_directory_that_is_no_directory_is_a_problem(bench: Bench) -> None:
    bench.settings = replace(bench.settings, state_dir=bench.write("run/file", "") / "state")
    assert bench.finds(service.state).result is PROBLEM
    bench.user = 1000
    assert bench.finds(service.state).result is NA


def test_a_cdi_device_with_our_key_and_no_guard_is_a_warning_with_what_to_do(bench: Bench) -> None:
    device: dict[str, Any] = {
        "name": "five",
        "annotations": {"rdma.noderesource.dev": "{mode: exclusive}"},
        "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs5"}]},
    }
    spec = {"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}
    file = bench.write("etc/cdi/vendor.json", json.dumps(spec))
    found = bench.finds(service.cdi)
    assert found.result is WARNING
    assert found.found.startswith("dra.example.com/nic=five has our annotation, but no guard: ")
    assert f"nri-rdma cdi guard {file} " in found.fix
    args = ["nri-rdma-hook", "verify", "--device", "dra.example.com/nic=five"]
    hook = {"hookName": "createRuntime", "path": "/x/nri-rdma-hook", "args": args}
    device["containerEdits"]["hooks"] = [hook]
    file.write_text(json.dumps(spec))
    assert bench.finds(service.cdi).result is OK
    del device["containerEdits"]["hooks"], device["annotations"]
    file.write_text(json.dumps(spec))
    assert bench.finds(service.cdi).result is OK


def test_a_cdi_file_that_cannot_be_used_is_a_warning_with_its_file(bench: Bench) -> None:
    assert bench.finds(service.cdi).result is OK
    file = bench.write("etc/cdi/bad.json", "{")
    found = bench.finds(service.cdi)
    assert (found.result, str(file) in found.found) == (WARNING, True)


def test_who_configures_links_too_is_told(bench: Bench) -> None:
    assert bench.finds(service.links).found == "no other program configures netdevs that return from pods"
    (bench.run / "systemd/netif").mkdir(parents=True)
    found = bench.finds(service.links)
    assert (found.result, found.found, found.fix) == (
        WARNING,
        f"networkd runs and may change netdevs that return from pods; the daemon does not restore what it changes, "
        f"because {bench.run}/udev/control is missing",
        "start systemd-udevd; if the daemon runs in a container, mount the host's /run/udev there, read-only",
    )
    (bench.run / "NetworkManager").mkdir()
    assert bench.finds(service.links).found.startswith("networkd and NetworkManager run and may change netdevs")
    bench.write("run/udev/control", "")
    found = bench.finds(service.links)
    assert (found.result, found.found) == (
        OK,
        "udev, networkd and NetworkManager may change netdevs that return from pods; after 2 s the daemon restores "
        "what they have changed",
    )


def test_a_daemon_that_hangs_is_a_problem(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_client, "_ANSWER_TIMEOUT_S", 0.2)
    bench.settings = replace(bench.settings, control_socket=tmp_path / "hangs.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bench.settings.control_path))
        listener.listen()
        found = bench.finds(service.daemon)
    assert (found.result, "does not answer within 0.2 s" in found.found) == (PROBLEM, True)
    assert "restart it" in found.fix
