"""docs/cdi.md shows what is so: its specs are read, and mean what is said of them."""

from __future__ import annotations

import re
from dataclasses import fields
from ipaddress import ip_interface
from pathlib import Path

from nri_rdma.cdi.meaning import CdiMeaning, Hardware, meaning
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import SpecFile, resolve
from nri_rdma.model.device import CharKind
from nri_rdma.model.request import UNLIMITED, DeviceRequest, InterfaceConfig, Isolation, Mode, RdmaLimits, Use
from nri_rdma.text.annotations import PREFIX
from tests.unit.model.hardware import eight

PAGE = (Path(__file__).resolve().parents[2] / "docs/cdi.md").read_text()
KEY, COMMON, NETDEVS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CHOOSING = {"pool", "match", "count", "if_free", "per_gpu", "scope", "align", "gpus"}
"""Fields of a request that a CDI device decides."""
OURS = {"where", "word", "cdi_device", "gpus_from", "gpus_problem", "cpus", "shares"}


def told(spec: str) -> dict[str, CdiMeaning]:
    """What the CDI devices of a spec mean, by their names in it, on a node with the NICs mlx5_0 to mlx5_7."""
    found = resolve([SpecFile(file="spec.yaml", priority=0, spec=parse(spec.encode(), "spec.yaml"))]).devices
    hardware = Hardware.of(eight())
    return {name.partition("=")[2]: meaning(device, hardware, PREFIX) for name, device in found.items()}


def request_of(of: CdiMeaning) -> DeviceRequest:
    """The one request of a CDI device."""
    (part,) = of.asked
    return part.request


def test_the_first_example_says_everything_that_a_key_can() -> None:
    of = told(KEY)["claim-7f3"]
    assert [device.name for device in of.devices] == ["mlx5_2"]
    request = request_of(of)
    assert (request.name, request.mode, request.isolation) == ("rail", Mode.EXCLUSIVE, Isolation.HARD)
    assert (request.use, request.prove, request.roce_version) == (Use.STORAGE, True, 1)
    interface = InterfaceConfig(name="net1", mtu=9000, addresses=((ip_interface("10.0.0.2/24"),),))
    assert request.interface == interface, "the first example of docs/cdi.md; change it here, too"
    assert request.char_kinds == {CharKind.UVERBS}
    assert (request.memlock, request.limits) == (UNLIMITED, RdmaLimits(hca_handles=8, hca_objects=10000))
    plain = DeviceRequest(name="", where="")
    same = {it.name for it in fields(request) if getattr(request, it.name) == getattr(plain, it.name)}
    assert same - OURS == {*CHOOSING, "admin_access"}  # the last one does not go with mode exclusive
    looks_on = "{mode: shared, adminAccess: true}"
    assert f"`{looks_on}`" in PAGE
    assert request_of(told(COMMON.replace("{memlock: unlimited}", looks_on))["fast"]).admin_access


def test_a_request_without_a_name_has_the_devices() -> None:
    assert request_of(told(KEY.replace("      name: rail\n", ""))["claim-7f3"]).name == "claim-7f3"


def test_the_second_example_has_a_key_for_all_and_one_instead() -> None:
    found = told(COMMON)
    fast, bounded = request_of(found["fast"]), request_of(found["bounded"])
    assert (fast.memlock, fast.limits) == (UNLIMITED, None)
    assert (bounded.memlock, bounded.limits) == (1 << 30, RdmaLimits(hca_handles=2))


def test_the_third_example_moves_two_netdevs_under_their_names() -> None:
    of = told(NETDEVS)["pair"]
    assert [device.name for device in of.devices] == ["mlx5_4", "mlx5_5"]
    requests = [part.request for part in of.asked]
    assert [it.name for it in requests] == ["pair-0", "pair-1"]
    assert [it.interface for it in requests] == [InterfaceConfig(name=name, mtu=9000) for name in ("net1", "net2")]
    assert {(it.mode, it.memlock) for it in requests} == {(Mode.EXCLUSIVE, UNLIMITED)}
