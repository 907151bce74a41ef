"""A container turns out near to its GPUs or far from them: distances of made-up hardware, judged by hand."""

from __future__ import annotations

import pytest

from nri_rdma.decide.alignment import Alignment, alignment_of, is_strict, refuse_far
from nri_rdma.decide.gpus import GpuNames, KnownGpus
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.decide.policy import Admitted
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.request import Align, AlignTo, DeviceRequest, Mode, Scope
from tests.unit.model.hardware import eight, gpu_address

NODE = eight()
"""A NIC and a GPU of the same number are below one root; 0 to 3 are on one NUMA node, 4 to 7 on the other."""
NAMES = GpuNames.of(NODE.gpus)
STRICT = Align(to=AlignTo.GPU, strict=True)


def _given(*nics: int, gpus: tuple[int, ...] = (), align: Align | None = None, only: str = "main") -> AttachedRequest:
    request = DeviceRequest(
        name="0",
        where="HERE",
        gpus=tuple(map(gpu_address, gpus)),
        align=align,
        scope=Scope(only=frozenset({only})),
    )
    devices = tuple(AttachedDevice(device=NODE.devices[number], netdev_names=()) for number in nics)
    return AttachedRequest(admitted=Admitted(request=request, mode=Mode.EXCLUSIVE), devices=devices)


def _shown(*gpus: int) -> KnownGpus:
    return KnownGpus(gpus=tuple(map(gpu_address, gpus)), source="its device nodes")


def _judged(*attached: AttachedRequest, shown: KnownGpus) -> Alignment:
    found = alignment_of(attached, "main", shown, NAMES)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("nics", "gpus", "words", "is_far"),
    [
        ((0,), (0,), "aligned: PHB", False),
        ((0, 7), (0, 7), "aligned: PHB", False),
        ((0,), (3,), "mlx5_0 is NODE from GPU 0001:13:00.0", True),
        ((0,), (7,), "mlx5_0 is SYS from GPU 0001:17:00.0", True),
        ((0,), (1, 2), "mlx5_0 is NODE from GPU 0001:11:00.0", True),
        ((0,), (7, 2), "mlx5_0 is NODE from GPU 0001:12:00.0", True),
        ((0, 1), (0,), "mlx5_1 is NODE from GPU 0001:10:00.0", True),
    ],
)
def test_each_device_is_judged_by_the_nearest_gpu(
    nics: tuple[int, ...], gpus: tuple[int, ...], words: str, is_far: bool
) -> None:
    found = _judged(_given(*nics, gpus=gpus), shown=_shown(*gpus))
    assert (found.words, found.is_far, found.contradiction) == (words, is_far, "")


def test_other_gpus_than_the_pod_was_placed_for_are_a_contradiction_and_count() -> None:
    found = _judged(_given(0, gpus=(0,), align=STRICT), shown=_shown(4))
    assert found.words == "mlx5_0 is SYS from GPU 0001:14:00.0"
    assert found.contradiction.startswith("its device nodes show GPU 0001:14:00.0, and ")
    assert [str(pair) for pair in found.refused] == ["mlx5_0 is SYS from GPU 0001:14:00.0"]


def test_only_the_devices_that_are_far_from_other_gpus_are_refused() -> None:
    found = _judged(_given(0, 4, gpus=(0,), align=STRICT), shown=_shown(4))
    assert [str(pair) for pair in found.pairs] == [
        "mlx5_0 is SYS from GPU 0001:14:00.0",
        "mlx5_4 is PHB from GPU 0001:14:00.0",
    ]
    assert [str(pair) for pair in found.refused] == ["mlx5_0 is SYS from GPU 0001:14:00.0"]


def test_a_further_gpu_that_is_far_from_all_devices_is_refused_beside_the_own_one() -> None:
    found = _judged(_given(0, gpus=(0,), align=STRICT), shown=_shown(0, 7))
    assert [str(pair) for pair in found.refused] == ["mlx5_0 is SYS from GPU 0001:17:00.0"]
    assert found.words == "mlx5_0 is SYS from GPU 0001:17:00.0"
    assert _judged(_given(0, gpus=(0,)), shown=_shown(0, 7)).refused == ()
    assert _judged(_given(0, 7, gpus=(0,), align=STRICT), shown=_shown(0, 7)).refused == ()


def test_devices_that_are_next_to_gpus_of_other_containers_only_are_refused_if_that_is_strict() -> None:
    for align, refused in ((None, []), (STRICT, ["mlx5_0 is SYS from GPU 0001:14:00.0"])):
        found = _judged(_given(0, gpus=(0, 4), align=align), shown=_shown(4))
        assert found.words == "mlx5_0 is SYS from GPU 0001:14:00.0"
        assert [str(pair) for pair in found.refused] == refused


def test_a_container_without_gpus_or_without_devices_is_not_judged() -> None:
    assert alignment_of((_given(0),), "main", KnownGpus(), NAMES) is None
    assert alignment_of((_given(0, gpus=(0,), only="side"),), "main", _shown(0), NAMES) is None
    assert alignment_of((_given(0, align=Align(to=AlignTo.NONE)),), "main", _shown(7), NAMES) is None


def test_a_gpu_that_the_node_does_not_know_has_no_distance() -> None:
    found = _judged(_given(0, gpus=(0,)), shown=_shown(0, 99))
    assert found.words == "aligned: PHB"


def test_what_a_strict_request_does_not_take_is_refused_with_the_place() -> None:
    found = _judged(_given(0, gpus=(0,), align=STRICT), shown=_shown(4))
    with pytest.raises(PlacementError, match=r"mlx5_0 is SYS from GPU 0001:14:00\.0") as caught:
        refuse_far(found, "ns/pod, container main")
    assert (caught.value.code, caught.value.where) == (ErrorCode.NOT_ALIGNED, "ns/pod, container main")


def test_another_request_is_served_however_far() -> None:
    refuse_far(_judged(_given(0, gpus=(0,)), shown=_shown(4)), "ns/pod")
    refuse_far(_judged(_given(0, gpus=(0,), align=STRICT), shown=_shown(0)), "ns/pod")


@pytest.mark.parametrize(
    ("align", "container", "strict"), [(STRICT, "main", True), (STRICT, "side", False), (None, "main", False)]
)
def test_a_container_is_strict_by_the_requests_that_cover_it(align: Align | None, container: str, strict: bool) -> None:
    assert is_strict((_given(0, align=align),), container) == strict
