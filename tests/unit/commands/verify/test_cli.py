"""`nri-rdma verify`, where there is no RDMA device."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import PROJECT, assert_one_error, nri_rdma
from tests.unit.host.pyverbs import python_that_sends, python_with


def test_a_device_that_does_not_work_is_named_with_its_likely_cause(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, {}), columns=300)
    assert done.returncode == 1
    assert "mlx5_0  1     -          -    -           -" in done.stdout
    assert "nri-rdma: PROOF-DEVICE: mlx5_0, port 1, cannot be opened, probably because " in done.stdout
    assert "RDMA works on 0 of 1 port (devices from the command line; RLIMIT_MEMLOCK " in done.stdout


def test_programs_get_the_same_as_a_document(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, {}), "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["works"], told["version"]) == (1, False, 1)
    (port,) = told["ports"]
    assert (port["device"], port["problem"]["code"], port["problem"]["step"]) == ("mlx5_0", "PROOF-DEVICE", "open")


def test_a_container_with_gpus_is_told_whether_gpudirect_is_possible(tmp_path: Path) -> None:
    build_tree(load("switch"), tmp_path / "sys")
    (tmp_path / "sys/bus/pci/devices/0000:1a:00.0/drm/renderD128").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:1a:00.0/drm/renderD128/dev").write_text("226:128\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    roots = ("--sysfs-root", tmp_path / "sys", "--dev-root", tmp_path / "dev")
    words = ("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, {}), *roots)
    shown = nri_rdma(*words, columns=999).stdout
    assert "GPUDirect RDMA: not possible for the GPUs of NVIDIA (NVIDIA's driver is not loaded); nearest: " in shown
    assert "Next: install the driver, then `modprobe nvidia`." in shown
    (told,) = json.loads(nri_rdma(*words, "-o", "json").stdout)["gpudirect"]
    assert (told["maker"], told["verdict"]) == ("NVIDIA", "not possible")
    assert told["next"] == "install the driver, then `modprobe nvidia`"


def test_without_pyverbs_one_sentence_says_so(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, None), columns=300)
    assert done.returncode == 1
    assert "nri-rdma: PROOF-UNAVAILABLE: pyverbs cannot be used: No module named 'pyverbs'. Next: " in done.stdout


def test_without_a_device_it_ends_with_1(tmp_path: Path) -> None:
    done = nri_rdma("verify", "--dev-root", tmp_path, "--sysfs-root", tmp_path)
    assert_one_error(done, "PROOF-DEVICE", 1)


def test_the_two_sides_of_a_measurement_end_with_the_same(tmp_path: Path) -> None:
    refusing, willing = (
        python_that_sends(tmp_path / name, f"Hca('mlx5_0', refuses={refuses})")
        for name, refuses in (("server", {"qp": 11}), ("client", {}))
    )
    words = ["verify", "mlx5_0", "-o", "json", "--verbs-python"]
    command = [sys.executable, "-m", "nri_rdma", *words, str(refusing), "--server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT) as server:
        assert server.stderr is not None
        waiting = server.stderr.readline()
        assert waiting.startswith("waiting for nri-rdma verify --connect at 127.0.0.1, TCP port ")
        assert waiting.endswith(" (this machine alone; --bind names another address)\n")
        port = waiting.split()[9]
        picture = tmp_path / "pairs.svg"
        ours = nri_rdma(*words, willing, "--connect", "127.0.0.1", "--port", port, "--svg", picture)
        served, _ = server.communicate(timeout=60)
    (pair,) = json.loads(ours.stdout)["pairs"]
    assert (pair["problem"]["code"], pair["problem"]["where"]) == (
        "PROOF-LIMITS",
        "the server's side of mlx5_0:1 and mlx5_0:1",
    )
    assert (ours.returncode, server.returncode, served) == (1, 1, ours.stdout)
    assert "PROOF-LIMITS" in picture.read_text()


def test_what_was_measured_before_the_other_side_went_away_is_shown(tmp_path: Path) -> None:
    willing = python_that_sends(tmp_path, "Hca('mlx5_0')")
    command = [sys.executable, "-m", "nri_rdma", "verify", "mlx5_0", "-o", "json", "--verbs-python", str(willing)]
    ports = [{"device": name, "port": 1} for name in ("a", "b")]
    figures = {"latency_us": {"min": 1, "median": 2, "p99": 3}, "mib_per_s": 40000.0}
    result = {"client": ports[0], "server": {"device": "mlx5_0", "port": 1}, **figures}
    with subprocess.Popen(
        [*command, "--server", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT
    ) as server:
        assert server.stderr is not None
        port = int(server.stderr.readline().split()[9])
        with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rw") as lines:
            lines.write(json.dumps({"protocol": "nri-rdma verify", "version": 1, "devices": ports}) + "\n")
            lines.flush()
            lines.readline()
            lines.write(json.dumps({"result": result}) + "\n")
            lines.flush()
        shown, error = server.communicate(timeout=60)
    document = json.loads(shown)
    assert (document["works"], [it["mib_per_s"] for it in document["pairs"]]) == (False, [40000.0])
    assert error.startswith("nri-rdma: PROOF-TRANSFER: the other side has ended the connection")


def test_words_that_do_not_go_together_are_a_wrong_use() -> None:
    both = nri_rdma("verify", "mlx5_0", "--server", "--connect", "127.0.0.1")
    assert_one_error(both, "SETTING", 2)
    assert_one_error(nri_rdma("verify", "mlx5_0", "--svg", "x.svg"), "SETTING", 2)
