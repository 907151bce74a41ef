"""The self-check of a device by pyverbs, of the guest's own Python."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import nri_rdma
from nri_rdma.commands.verify.checks import error_of
from nri_rdma.host.verbs import numbers, program, selfcheck
from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri, ExecResult, Sandbox
from tests.rig.deadline import wait_until

CHECKOUT = Path(nri_rdma.__file__).resolve().parents[1]
COMMAND = ("/usr/bin/python3", "-m", "nri_rdma", "verify")

MIB = 1 << 20
TASK: dict[str, Any] = {
    "port": 1,
    "gid_index": None,
    "addresses": [],
    "roce_version": 2,
    "memory_bytes": MIB,
    "transfer_bytes": MIB,
}


def addresses(netdev: str, *which: str) -> str:
    """The IPv6 addresses of a netdev."""
    command = ["ip", "-6", "-o", "address", "show", "dev", netdev, *which]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def set_up(device: str) -> None:
    """Set the device's netdev up, until it has an address again, which may still be tested for duplicates."""
    netdev = kernel.netdev_of(device)
    subprocess.run(["ip", "link", "set", netdev, "up"], check=True)
    wait_until(lambda: addresses(netdev), f"an address of {netdev}", seconds=30)
    wait_until(
        lambda: any(link["ifname"] == device and link["state"] == "ACTIVE" for link in kernel.rdma_links()),
        f"an active port of {device}",
        seconds=30,
    )


def check(*tasks: dict[str, Any], enter: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The program's answers to these tasks, entered by a command."""
    command = [*enter, "/usr/bin/python3", "-I", program.__file__, "check"]
    asked = "".join(f"{json.dumps({**TASK, **task})}\n" for task in tasks)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_device_that_works_moves_data_to_itself(rdma_device: str) -> None:
    (told,) = check({"device": rdma_device})
    assert "problem" not in told, repr(told.get("problem"))
    assert (told["transport"], told["registered_bytes"], told["transferred_bytes"]) == ("roce", MIB, MIB)
    assert told["gid"]["type"] == "RoCE v2"


@pytest.mark.parametrize("queue_pair", ["RC", "UD"])
def test_a_device_works_while_its_address_is_tested_for_duplicates(
    rdma_device: str, queue_pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    netdev = kernel.netdev_of(rdma_device)
    subprocess.run(["ip", "link", "set", netdev, "down"], check=True)
    set_up(rdma_device)
    print("tentative:", addresses(netdev, "tentative"))  # nearly always; a slow machine is through with the test here
    if queue_pair == "UD":
        monkeypatch.setattr(numbers, "RC", 99)  # a type that no driver has
    told = selfcheck.check({**TASK, "device": rdma_device, "gid_index": 0, "transfer_bytes": MIB // 8})
    print(told["ms"], addresses(netdev))
    assert "problem" not in told, repr(told.get("problem"))


def test_each_fault_is_an_answer_with_its_step(rdma_device: str) -> None:
    gone, empty, small = check(
        {"device": "gone"}, {"device": rdma_device, "gid_index": 9}, {"device": rdma_device, "memory_bytes": 0}
    )
    assert gone["problem"]["step"] == "open"
    assert empty["problem"]["step"] == "gid"
    assert "problem" not in small
    assert small["transferred_bytes"] == MIB


CGROUP = Path("/sys/fs/cgroup/verify")
LITTLE = ("prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
JOIN = ("sh", "-c", f'echo $$ >{CGROUP}/cgroup.procs && exec "$@"', "sh")
WITHOUT_NODES = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/infiniband && exec "$@"', "sh")


class Fault(NamedTuple):
    """What is planted: a command that enters it, a line of rdma.max, or the netdev is down."""

    code: str
    enter: tuple[str, ...] = ()
    limit: str = ""
    is_down: bool = False


FAULTS = {
    "little memory may be locked": Fault("PROOF-MEMLOCK", LITTLE),
    "no context": Fault("PROOF-LIMITS", JOIN, "hca_handle=0"),
    "no object": Fault("PROOF-LIMITS", JOIN, "hca_object=0"),
    "three objects": Fault("PROOF-LIMITS", JOIN, "hca_object=3"),
    "no node": Fault("PROOF-DEVICE", WITHOUT_NODES),
    "port down": Fault("PROOF-PORT", is_down=True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_has_its_code(rdma_device: str, name: str) -> None:
    fault, netdev = FAULTS[name], kernel.netdev_of(rdma_device)
    CGROUP.mkdir()
    try:
        if fault.limit:
            (CGROUP / "rdma.max").write_text(f"{rdma_device} {fault.limit}")
        if fault.is_down:
            subprocess.run(["ip", "link", "set", netdev, "down"], check=True)
        (told,) = check({"device": rdma_device, "memory_bytes": 2 * MIB}, enter=fault.enter)
    finally:
        CGROUP.rmdir()
        set_up(rdma_device)
    error = error_of(told, rdma_device, 1)
    print(error)
    assert error is not None
    assert error.code == fault.code, error


def test_a_device_of_another_namespace_is_not_found(rdma_device: str) -> None:
    kernel.rdma("system", "set", "netns", "exclusive")
    try:
        (told,) = check({"device": rdma_device}, enter=("unshare", "-n"))
    finally:
        kernel.rdma("system", "set", "netns", "shared")
    error = error_of(told, rdma_device, 1)
    print(error)
    assert error is not None
    assert error.code == "PROOF-DEVICE"
    assert "it is not in this network namespace" in error.what


def test_a_queue_pair_of_datagrams_moves_data_where_a_device_has_no_rc(
    rdma_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "RC", 99)  # a type that no driver has
    told = selfcheck.check({**TASK, "device": rdma_device, "transfer_bytes": MIB // 8})
    assert "problem" not in told, repr(told.get("problem"))
    assert told["transferred_bytes"] == MIB // 8


def equipped(cri: Cri, sandbox: Sandbox) -> Container:
    """A running container with the guest's own programs: its Python, pyverbs and perftest, and the product."""
    container = cri.create_container(
        *(sandbox, "main", ("/bin/sleep", "1000000")),
        image=WORKLOAD,
        mounts={"/usr": "/usr", str(CHECKOUT): "/srv/checkout"},
        env={"PYTHONPATH": f"/srv/checkout:{os.environ.get('PYTHONPATH', '')}"},
    )
    cri.start(container)
    return container


def verify(cri: Cri, container: Container, *words: str, seconds: int = 120) -> ExecResult:
    """The command in a container."""
    done = cri.exec(container, [*COMMAND, *words], seconds=seconds)
    print(done.stdout, done.stderr)
    return done


def test_the_command_proves_the_devices_of_its_container(cri: Cri, daemon: Server, rdma_device: str) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    with verbs.pod(cri, "verified", ask) as sandbox, verbs.pod(cri, "bare", {}) as without:
        container = equipped(cri, sandbox)
        done = verify(cri, container)
        little = cri.exec(container, ["prlimit", "--memlock=65536", *COMMAND], seconds=120)
        print(little.stdout, little.stderr)
        none = verify(cri, equipped(cri, without))
    assert done.exit_code == 0, done
    assert "RDMA works on 1 of 1 port (devices from the variables RDMA_DEVICES_*" in done.stdout
    assert (little.exit_code, none.exit_code) == (1, 1)
    assert "nri-rdma: PROOF-MEMLOCK: memory cannot be registered on" in little.stdout
    assert none.stderr.startswith("nri-rdma: PROOF-DEVICE: no RDMA device was given to this container")


@pytest.mark.outcome("verify-pairs")
def test_two_pods_are_measured_as_perftest_measures_them(cri: Cri, daemon: Server, rdma_device: str) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    with verbs.pod(cri, "server", ask) as servers, verbs.pod(cri, "client", ask) as clients:
        server, client, ip = equipped(cri, servers), equipped(cri, clients), cri.pod_status(servers).ip
        serving = verbs.Program(cri, server, [*COMMAND, "--server", "--bind", ip], seconds=200)
        ours = verify(cri, client, "--connect", ip, "--iterations", "1000", "--seconds", "3", "-o", "json")
        served = serving.end()
        print(served.stdout, served.stderr)
        assert (ours.exit_code, served.exit_code) == (0, 0), f"{ours}\n{served}"
        (pair,) = json.loads(ours.stdout)["pairs"]
        latency = perftest(cri, server, client, ip, ["ib_write_lat", "-s", "8", "-n", "1000"])
        rate = perftest(cri, server, client, ip, ["ib_write_bw", "-s", str(MIB), "-n", "100"])
    (_, _, least, _, typical, *_), (_, _, _, average, *_) = latency, rate
    told = pair["latency_us"]
    print(f"\n{'':24}{'nri-rdma verify':>16}{'perftest':>16}")
    print(f"{'latency, least (us)':24}{told['min']:16.2f}{float(least):16.2f}")
    print(f"{'latency, median (us)':24}{told['median']:16.2f}{float(typical):16.2f}")
    print(f"{'bandwidth (MiB/s)':24}{pair['mib_per_s']:16.2f}{float(average):16.2f}")
    assert 0 < told["min"] <= told["median"] <= told["p99"]
    assert pair["mib_per_s"] > float(average) / 3


def perftest(cri: Cri, server: Container, client: Container, ip: str, command: Sequence[str]) -> list[str]:
    """The numbers in the row that a program of perftest prints."""
    words = [*command, "-d", "rxe0", "-x", "0", "-p", str(verbs.PORT), "-F"]
    listening = verbs.Program(cri, server, words, seconds=100)
    verbs.wait_until_listening(cri.container_status(server).pid, verbs.PORT)
    done = cri.exec(client, [*words, ip], seconds=100)
    listening.end()
    print(done.stdout, done.stderr)
    (row,) = (line.split() for line in done.stdout.splitlines() if re.match(r"^\s*\d+\s+\d+\s", line))
    return row


@pytest.fixture
def siw() -> Iterator[None]:
    kernel.load_lab_module("siw")
    yield
    kernel.unload("siw")


def test_iwarp_moves_data_through_the_connection_manager(cri: Cri, daemon: Server, siw: None) -> None:
    with verbs.pod(cri, "siw7", verbs.asks("mode: shared, match: {device: siw7}")) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        pid, address = cri.container_status(container).pid, cri.pod_status(sandbox).ip
        (told,) = check({"device": "siw7", "addresses": [address]}, enter=["nsenter", f"--net=/proc/{pid}/ns/net"])
    assert "problem" not in told, repr(told.get("problem"))
    assert (told["transport"], told["transferred_bytes"]) == ("iwarp", MIB)
