"""Recorded spans get the names of OpenTelemetry's conventions."""

import pytest

from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.observe.conventions import attributes_of, is_server
from nri_rdma.observe.spans import AttributeValue, Recorder, Span


def span(name: str, error: str = "", **attributes: AttributeValue) -> Span:
    with Recorder().span(name, {key.replace("__", "."): value for key, value in attributes.items()}) as made:
        pass
    made.error = error
    return made


def test_namespace_and_name_of_a_pod_are_two_attributes() -> None:
    assert attributes_of(span("attach", k8s__pod__name="ml/train", k8s__pod__uid="u")) == {
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "train",
        "k8s.pod.uid": "u",
    }
    assert attributes_of(span("attach", k8s__pod__name="train")) == {"k8s.pod.name": "train"}


def test_lists_are_arrays_and_what_has_no_namespace_gets_ours() -> None:
    told = attributes_of(span("place", rdma__devices="mlx5_0, mlx5_1", rdma__gpus="", reason="a, b", step=3))
    assert told == {"rdma.devices": ("mlx5_0", "mlx5_1"), "rdma.gpus": (), "rdma.reason": "a, b", "rdma.step": 3}


@pytest.mark.parametrize("event", ["RunPodSandbox", "CreateContainer", "StartContainer", "StopPodSandbox"])
def test_a_call_of_the_runtime_is_an_rpc_that_we_serve(event: str) -> None:
    assert is_server(span(event))
    assert attributes_of(span(event))["rpc.method"] == event
    assert not is_server(span("place"))
    assert "rpc.method" not in attributes_of(span("place"))


def test_an_error_has_its_code() -> None:
    refusal = PlacementError(ErrorCode.DEVICES_EXHAUSTED, "asked 9, free 8", hint="wait")
    assert attributes_of(span("place", str(refusal)))["error.type"] == "DEVICES-EXHAUSTED"
    assert attributes_of(span("place", "ValueError"))["error.type"] == "_OTHER"
    assert "error.type" not in attributes_of(span("place"))
