"""The doctor looks for the hook that CDI devices name."""

import json
from pathlib import Path
from typing import Any

from nri_rdma.commands.doctor.hooks import hooks
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench

SOURCE = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"


def specify(bench: Bench, edits: dict[str, Any], version: str = "0.3.0", name: str = "nic") -> None:
    device = {"name": "mlx5_0", "containerEdits": {"env": ["A=1"], **edits}}
    spec = {"cdiVersion": version, "kind": f"vendor.example/{name}", "devices": [device]}
    bench.write(f"etc/cdi/{name}.json", json.dumps(spec))


def hook(path: Path, program: str = "nri-rdma-oci-hook") -> dict[str, Any]:
    return {"hooks": [{"hookName": "createRuntime", "path": str(path), "args": [program, "attach"]}]}


def test_without_such_a_device_there_is_nothing_to_check(bench: Bench) -> None:
    assert bench.finds(hooks).result is NA
    specify(bench, hook(Path("/nowhere"), "another-hook"))
    assert bench.finds(hooks).result is NA


def test_a_hook_that_is_not_there_or_no_program_keeps_containers_from_starting(bench: Bench) -> None:
    path = bench.folder / "nri-rdma-oci-hook"
    specify(bench, hook(path))
    for _ in range(2):
        found = bench.finds(hooks)
        assert (found.result, str(path) in found.found) == (PROBLEM, True)
        copies = [it.split()[-2:] for it in found.fix.removesuffix(" (docs/podman.md)").split(" && ")]
        both = ("nri_rdma_oci_hook.py", "nri-rdma-oci-hook")
        assert copies == [[f"/opt/nri-rdma/bin/{name}", str(bench.folder / name)] for name in both]
        path.write_text("#!/bin/sh\n")
        path.chmod(0o644)
    path.chmod(0o755)
    found = bench.finds(hooks)
    assert (found.result, found.found) == (OK, f"CDI devices bring {path}")


def test_netdevs_that_the_oci_runtime_would_move_are_told_of(bench: Bench) -> None:
    moved = {"netDevices": [{"hostInterfaceName": "rail0", "name": "net0"}]}
    specify(bench, moved, "1.1.0", "other")
    found = bench.finds(hooks)
    assert (found.result, found.found.partition(" ")[0]) == (WARNING, "vendor.example/other=mlx5_0")
