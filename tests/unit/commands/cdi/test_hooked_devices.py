"""The hooks and variables of a node's CDI devices."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import Device, Hook, HookName, Version
from nri_rdma.commands.cdi.generate import spec_of
from nri_rdma.commands.cdi.hooked_devices import HookStyle, hooked
from nri_rdma.decide.policy import Policy
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import Selector
from tests.unit.model.hardware import eight
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

DEFAULT = HookStyle()
READ_BY_PODMAN_4_3 = (Version.V0_3_0, Version.V0_4_0, Version.V0_5_0)


def devices(of: Node, policy: Policy = EXCLUSIVE_FIRST, style: HookStyle = DEFAULT) -> dict[str, Device]:
    """The devices of the spec, as they are read back."""
    spec = parse(encode(hooked(spec_of(of), of, policy, style).spec), "nic.json")
    assert spec.version in READ_BY_PODMAN_4_3
    return {device.name: device for device in spec.devices}


def hooks(device: Device) -> dict[HookName, Hook]:
    return {hook.hook_name: hook for hook in device.edits.hooks}


def policy(*pools: Pool) -> Policy:
    return Policy(pools={pool.name: pool for pool in pools})


def test_each_device_asks_for_itself_and_gives_back() -> None:
    found = devices(eight())
    assert list(found) == [*(f"mlx5_{number}" for number in range(8)), "all"]
    attach, give_back = hooks(found["mlx5_3"])[HookName.CREATE_RUNTIME], hooks(found["mlx5_3"])[HookName.POSTSTOP]
    program = "/usr/local/lib/nri-rdma/nri-rdma-oci-hook"
    assert (attach.path, give_back.path) == (program, program)
    assert attach.args == (
        *("nri-rdma-oci-hook", "attach", "--device", "mlx5_3", "--mode", "exclusive"),
        *("--netdev", eight().devices[3].netdevs[0].name),
    )
    assert give_back.args == ("nri-rdma-oci-hook", "return")
    assert (attach.timeout, give_back.timeout) == (15, 15)


def test_the_nodes_stay_those_of_a_spec_without_hooks() -> None:
    plain = {device.name: device.edits.device_nodes for device in spec_of(eight()).spec.devices}
    found = {name: device.edits.device_nodes for name, device in devices(eight()).items()}
    assert found.pop("all") == tuple(chain.from_iterable(plain.values()))
    assert found == plain


def test_the_device_all_is_each_of_them() -> None:
    *single, every = devices(eight()).values()
    assert every.edits.env == tuple(chain.from_iterable(it.edits.env for it in single))
    attaches = [it for it in every.edits.hooks if it.hook_name is HookName.CREATE_RUNTIME]
    assert attaches == [hooks(it)[HookName.CREATE_RUNTIME] for it in single]
    assert (
        [*every.edits.hooks].count(hooks(single[0])[HookName.POSTSTOP]) == len(every.edits.hooks) - len(attaches) == 1
    )


@pytest.mark.parametrize(("count", "has_all"), [(64, True), (65, False)])
def test_there_is_no_device_all_of_more_than_a_container_can_ask_for(count: int, has_all: bool) -> None:
    node = eight()
    many = replace(node, devices=tuple(replace(node.devices[0], name=f"mlx5_{number}") for number in range(count)))
    generated = hooked(spec_of(many), many, EXCLUSIVE_FIRST, DEFAULT)
    assert (generated.spec.devices[-1].name == "all", len(generated.spec.devices)) == (has_all, count + has_all)
    sentence = "There is no device all: a container can ask for 64 devices, and here are 65."
    assert generated.left_out == (() if has_all else (sentence,))


def test_an_rdma_device_that_is_called_all_is_only_itself() -> None:
    node = eight()
    (other,) = devices(replace(node, devices=(replace(node.devices[0], name="all"),))).values()
    assert hooks(other)[HookName.CREATE_RUNTIME].args[2:4] == ("--device", "all")


def test_variables_of_two_devices_do_not_meet() -> None:
    single = [device for name, device in devices(eight()).items() if name != "all"]
    names = [entry.partition("=")[0] for device in single for entry in device.edits.env]
    assert len(names) == len(set(names)) == 16
    netdev = eight().devices[3].netdevs[0].name
    assert devices(eight())["mlx5_3"].edits.env == ("RDMA_DEVICES_MLX5_3=mlx5_3", f"RDMA_NETDEVS_MLX5_3={netdev}")


def test_a_shared_device_names_no_netdev() -> None:
    device = devices(eight(), style=HookStyle(mode=Mode.SHARED))["mlx5_3"]
    assert hooks(device)[HookName.CREATE_RUNTIME].args[2:] == ("--device", "mlx5_3", "--mode", "shared")
    assert device.edits.env == ("RDMA_DEVICES_MLX5_3=mlx5_3",)


def test_a_device_with_two_netdevs_keeps_their_names_to_the_daemon() -> None:
    node = eight()
    two = replace(node.devices[0], netdevs=node.devices[0].netdevs + node.devices[1].netdevs)
    device = devices(replace(node, devices=(two, *node.devices[2:])))["mlx5_0"]
    assert "--netdev" not in hooks(device)[HookName.CREATE_RUNTIME].args
    assert device.edits.env == ("RDMA_DEVICES_MLX5_0=mlx5_0",)


def test_what_is_given_besides_stands_in_the_hooks() -> None:
    style = HookStyle(path=Path("/h"), socket=Path("/s"), pool="default", memlock="unlimited")
    found = hooks(devices(eight(), style=style)["mlx5_0"])
    assert found[HookName.CREATE_RUNTIME].path == "/h"
    words = found[HookName.CREATE_RUNTIME].args
    assert words[4:6] == ("--pool", "default")
    assert words[-4:] == ("--memlock", "unlimited", "--socket", "/s")
    assert found[HookName.POSTSTOP].args == ("nri-rdma-oci-hook", "return", "--socket", "/s")


def test_the_mode_is_the_first_of_the_devices_pool_that_the_kernel_can_serve() -> None:
    shared_first = policy(Pool(name="default", modes=(Mode.SHARED, Mode.EXCLUSIVE)))
    args = hooks(devices(eight(), shared_first)["mlx5_0"])[HookName.CREATE_RUNTIME].args
    assert args[4:6] == ("--mode", "shared")
    hiding = replace(eight(), rdma_netns=RdmaNetns.EXCLUSIVE)
    args = hooks(devices(hiding, shared_first)["mlx5_0"])[HookName.CREATE_RUNTIME].args
    assert args[4:6] == ("--mode", "exclusive")


def test_devices_that_no_pool_gives_to_containers_are_left_out_with_the_reason() -> None:
    one, two = (Selector(device=(f"mlx5_{number}",)) for number in (0, 1))
    pools = policy(
        Pool(name="rails", modes=(Mode.EXCLUSIVE,), select=(one,)),
        Pool(name="claimed", modes=(Mode.EXCLUSIVE,), select=(two,), door=PoolDoor.CLAIMS),
    )
    generated = hooked(spec_of(eight()), eight(), pools, DEFAULT)
    assert [device.name for device in generated.spec.devices] == ["mlx5_0", "all"]
    assert generated.left_out[0] == "mlx5_1 is left out: pool claimed is asked through Kubernetes (claims)."
    assert generated.left_out[1] == "mlx5_2 is left out: no pool has it, or several pools do."


def test_without_any_device_the_reasons_are_the_error() -> None:
    with pytest.raises(PlacementError) as caught:
        hooked(
            spec_of(eight()),
            eight(),
            policy(Pool(name="default", modes=(Mode.SHARED,))),
            HookStyle(mode=Mode.EXCLUSIVE),
        )
    assert caught.value.code is ErrorCode.POOL_MODE
    assert "mlx5_0 is left out: pool default serves shared, not exclusive." in caught.value.detail
