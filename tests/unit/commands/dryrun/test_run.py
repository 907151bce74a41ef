"""A dry run decides as the daemon does, tells the runtime nothing, and changes nothing."""

import logging

import pytest

from nri_rdma.commands.dryrun.run import dry_identity
from nri_rdma.config.settings import Settings
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.unit.commands.dryrun.looking import Looking


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_a_pod_that_would_be_served_is_reported_and_its_container_gets_nothing(
    looking: Looking, own_rpcs: bool
) -> None:
    runtime = looking.connect()
    runtime.own_rpcs = own_rpcs
    pod = looking.pod("one", "[{name: fabric, match: {device: mlx5_3}}]")
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    runtime.start_container(pod, nri.Container(id="c-main", pod_sandbox_id=pod.id, name="main"))
    told = looking.line("pod", "one")
    assert (told["would"], told["was_there"]) == ("attach", False)
    (device,) = told["devices"]
    assert (device["device"], device["mode"]) == ("mlx5_3", "exclusive")
    assert device["netdevs"] == [
        {"name": "rail3", "pod_name": "rdma0", "takes": ["addresses", "routes", "rules", "neighbours"]}
    ]
    container = looking.line("container", "one", "main")
    assert container["would"] == "give"
    assert [node["path"] for node in container["char_devices"]] == [
        "/dev/infiniband/uverbs3",
        "/dev/infiniband/rdma_cm",
    ]
    assert container["env"]["RDMA_NETDEVS_FABRIC"] == "rdma0"


def test_a_pod_that_would_be_refused_runs_and_its_code_is_reported(looking: Looking) -> None:
    runtime = looking.connect()
    pod = looking.pod("bad", "- {cuont: 2}")
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    told = looking.line("pod", "bad")
    assert (told["would"], told["code"]) == ("refuse", "ANNOTATION-UNKNOWN-KEY")
    assert told["error"].startswith("nri-rdma: ANNOTATION-UNKNOWN-KEY: ")
    assert looking.line("container", "bad", "main")["code"] == "ANNOTATION-UNKNOWN-KEY"


def test_a_pod_that_asks_for_nothing_is_reported(looking: Looking) -> None:
    runtime = looking.connect()
    pod = looking.pod("plain", None)
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    assert looking.line("pod", "plain")["would"] == "nothing"
    assert looking.line("container", "plain", "main")["would"] == "nothing"


def test_the_second_pod_sees_the_first_ones_devices_taken_until_that_has_stopped(looking: Looking) -> None:
    runtime = looking.connect()
    text = "[{match: {device: mlx5_3}}]"
    first = looking.pod("first", text)
    runtime.run_pod_sandbox(first)
    runtime.run_pod_sandbox(looking.pod("second", text))
    assert looking.line("pod", "second")["code"] == "DEVICE-IN-USE"
    runtime.stop_pod_sandbox(first)
    runtime.remove_pod_sandbox(first)
    runtime.run_pod_sandbox(looking.pod("third", text))
    assert looking.line("ended", "first")
    assert looking.line("pod", "third")["would"] == "attach"


def test_a_bug_is_logged_and_not_told_to_the_runtime(looking: Looking, caplog: pytest.LogCaptureFixture) -> None:
    runtime = looking.connect()
    looking.broken = RuntimeError("planted")
    with caplog.at_level(logging.ERROR):
        runtime.run_pod_sandbox(looking.pod("one", "1"))
    assert "bug in a handler" in caplog.text
    looking.broken = None


def test_a_call_that_is_unknown_is_answered_as_the_daemon_does(looking: Looking) -> None:
    runtime = looking.connect()
    with pytest.raises(RpcError) as refused:
        runtime.call("UpdatePodSandbox", nri.UpdatePodSandboxRequest())
    assert refused.value.code is Code.UNIMPLEMENTED


def test_it_has_another_name_than_the_daemon_and_the_place_before_it() -> None:
    assert dry_identity(Settings(plugin_name="ours", plugin_index="50")).name == "ours-dry-run"
    assert dry_identity(Settings(plugin_name="ours", plugin_index="50")).index == "49"
    assert dry_identity(Settings(plugin_index="00")).index == "00"
