"""Nodes with jobs on them, from small to hostile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node
from nri_rdma.model.request import Mode
from tests.unit.commands.picture.machines import crowded, described, flat, held, hostile, switched
from tests.unit.model import hardware

LONG = "a-namespace-with-a-long-name/" + "a-job-whose-name-does-not-end-" * 6 + "17"
DESCRIBED = ("eight", "vf8", "ib2", "small", "lab-eight", "lab-sriov")
JOBS = {"jobs/one": (("mlx5_0",), (0,)), "jobs/two": (("mlx5_1", "mlx5_2"), (1, 2)), LONG: (("mlx5_3",), (6,))}


def _described(name: str, work: Path) -> tuple[Node, Taken]:
    return described(name, work), {}


def _eight_with_jobs(work: Path) -> tuple[Node, Taken]:
    node = described("eight", work)
    return node, held(node, {**JOBS, "infra/backup": (("mlx5_5",), ())})


def _shared(work: Path) -> tuple[Node, Taken]:
    node = described("eight", work)
    pods = {f"jobs/reader-{number}": (("mlx5_0", "mlx5_4"), (number % 8,)) for number in range(30)}
    return node, held(node, pods, Mode.SHARED)


def crowded_with_jobs(_work: Path) -> tuple[Node, Taken]:
    node = crowded()
    pods = {f"jobs/pod-{number}": ((f"mlx5_{number + 1}",), (number % 2,)) for number in range(20)}
    return node, held(node, {**pods, "jobs/sf": (("mlx5_66",), (1,))})


def _without_numa(_work: Path) -> tuple[Node, Taken]:
    node = hardware.eight()
    return replace(node, devices=tuple(replace(it, numa_node=None) for it in node.devices)), {}


def _one_pod_for_all(_work: Path) -> tuple[Node, Taken]:
    node = flat()
    return node, held(node, {"jobs/all": (tuple(it.name for it in node.devices), tuple(range(16)))})


MACHINES: dict[str, Callable[[Path], tuple[Node, Taken]]] = {
    **{name: partial(_described, name) for name in DESCRIBED},
    "eight with jobs": _eight_with_jobs,
    "shared": _shared,
    "crowded": crowded_with_jobs,
    "switches": lambda _work: (switched(), held(switched(), JOBS)),
    "one root": _one_pod_for_all,
    "hostile": lambda _work: (hostile(), held(hostile(), {'a/<b>&"': (("m" * 60,), (2,))})),
    "NUMA nodes unknown": _without_numa,
    "no GPU": lambda _work: (replace(hardware.eight(), gpus=()), {}),
    "no RDMA device": lambda _work: (replace(hardware.eight(), devices=()), {}),
    "nothing": lambda _work: (hardware.node(), {}),
}
