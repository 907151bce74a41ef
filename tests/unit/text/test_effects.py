"""Each key of a request has an effect: with it, a pod gets other devices, another network or other containers' edits.

That a key is read, test_requests.py shows; a line that is missing between there and the kernel, only this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_interface
from typing import Any

import pytest

from nri_rdma.attach.ops import Inherit, Op
from nri_rdma.attach.plan import ops_of
from nri_rdma.decide.policy import policy_of
from nri_rdma.engine.image_check import concerns
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import CharKind
from nri_rdma.model.gid import Gid, GidType
from nri_rdma.model.pool import Pool, Rule
from nri_rdma.model.request import Mode
from nri_rdma.model.rights import InterfaceRight
from nri_rdma.model.selector import Selector
from tests.fakes.kernel import Address
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.text.request_cases import FULL, IN_VRF

Request = dict[str, Any]
BOTH = (Mode.EXCLUSIVE, Mode.SHARED)
SIXTH = Selector(device=("mlx5_6",))
FREE = policy_of(
    (Pool(name="default", modes=BOTH, exclude=(SIXTH,)), Pool(name="fast", modes=BOTH, select=(SIXTH,))),
    (Rule(name="all", where="", char_kinds=frozenset(CharKind), interface=frozenset(InterfaceRight)),),
    allow_default_pool=False,
)
"""A policy under which everybody may say everything."""
NET = {"mode": "exclusive", "interface": {"addresses": ["10.0.0.2/24"]}}
VIA = {"destination": "10.8.0.0/16", "gateway": "10.0.0.1"}
RULE = {"priority": 100, "table": 100}
GPU = "0000:be:00.0"
ROCE = (GidType.ROCE_V1, GidType.ROCE_V2)


def net(**interface: object) -> Request:
    return {"mode": "exclusive", "interface": {"addresses": ["10.0.0.2/24"], **interface}}


def route(**more: object) -> Request:
    return {**NET, "routes": [{**VIA, **more}]}


def paths(other: Request) -> Request:
    return {**NET, "routes": [{"destination": "10.8.0.0/16", "multipath": [{"gateway": "10.0.0.1"}, other]}]}


def rule(**more: object) -> Request:
    return {**NET, "rules": [{**RULE, **more}]}


EFFECTS: dict[str, tuple[Request, Request]] = {
    "name": ({"name": "rails"}, {}),
    "pool": ({"pool": "fast"}, {"pool": "default"}),
    "match.device": ({"match": {"device": "mlx5_2"}}, {}),
    "match.netdev": ({"match": {"netdev": "rail2"}}, {}),
    "match.pci": ({"match": {"pci": "0000:62:00.0"}}, {}),
    "match.vendor": ({"match": {"vendor": "8086"}}, {}),
    "match.deviceID": ({"match": {"deviceID": "101e"}}, {}),
    "match.pfName": ({"match": {"pfName": "rail2"}}, {}),
    "match.protocol": ({"match": {"protocol": "iwarp"}}, {}),
    "match.pkey": ({"match": {"pkey": 0x8001}}, {}),
    "match.exclude.device": ({"match": {"exclude": {"device": "mlx5_0"}}}, {}),
    "match.driver": ({"match": {"driver": "irdma"}}, {}),
    "match.linkLayer": ({"match": {"linkLayer": "InfiniBand"}}, {}),
    "match.numaNode": ({"match": {"numaNode": 0}}, {}),
    "match.minSpeedGbps": ({"match": {"minSpeedGbps": 800}}, {}),
    "count": ({"count": 2}, {}),
    "containers": ({"containers": ["trainer"]}, {}),
    "align.to": ({"gpus": [GPU], "align": {"to": "gpu", "strict": True}, "match": {"device": "mlx5_4"}},
                 {"gpus": [GPU], "align": {"to": "numa", "strict": True}, "match": {"device": "mlx5_4"}}),
    "align.strict": ({"gpus": [GPU], "align": {"to": "gpu", "strict": True}, "match": {"device": "mlx5_0"}},
                     {"gpus": [GPU], "align": {"to": "gpu", "strict": False}, "match": {"device": "mlx5_0"}}),
    "gpus": ({"gpus": [GPU]}, {}),
    "mode": ({"mode": "shared"}, {"mode": "exclusive"}),
    "isolation": ({"mode": "exclusive", "isolation": "hard"}, {"mode": "exclusive"}),
    "interface.name": (net(name="net1"), net()),
    "interface.mtu": (net(mtu=4200), net()),
    "interface.addresses": (net(addresses=["10.0.0.3/24"]), net()),
    "interface.inherit": ({"mode": "exclusive", "interface": {"inherit": False}}, {"mode": "exclusive"}),
    "interface.hardwareAddr": (net(hardwareAddr="02:00:5e:10:00:02"), net()),
    "interface.gsoMaxSize": (net(gsoMaxSize=65537), net()),
    "interface.groMaxSize": (net(groMaxSize=65537), net()),
    "interface.gsoIPv4MaxSize": (net(gsoIPv4MaxSize=65537), net()),
    "interface.groIPv4MaxSize": (net(groIPv4MaxSize=65537), net()),
    "interface.disableEbpfPrograms": (net(disableEbpfPrograms=True), net()),
    "interface.forwarding": (net(forwarding=True), net()),
    "interface.arpIgnore": (net(arpIgnore=1), net()),
    "interface.arpAnnounce": (net(arpAnnounce=2), net()),
    "interface.enableIPv6": (net(enableIPv6=False), net()),
    "interface.vrf.name": (net(vrf={"name": "red", "table": 7}), net(vrf={"name": "blue", "table": 7})),
    "interface.vrf.table": (net(vrf={"name": "red", "table": 7}), net(vrf={"name": "red", "table": 8})),
    "routes.destination": (route(destination="10.9.0.0/16"), route()),
    "routes.gateway": (route(gateway="10.0.0.9"), route()),
    "routes.source": (route(source="10.0.0.2"), route()),
    "routes.scope": ({**NET, "routes": [{"destination": "10.8.0.0/16", "scope": 253}]},
                     {**NET, "routes": [{"destination": "10.8.0.0/16", "scope": 0}]}),
    "routes.table": (route(table=100), route()),
    "routes.metric": (route(metric=5), route()),
    "routes.onlink": (route(onlink=True), route()),
    "routes.mtu": (route(mtu=1400), route()),
    "routes.advmss": (route(advmss=1300), route()),
    "routes.type": ({**NET, "routes": [{"destination": "10.8.0.0/16", "type": "blackhole"}]},
                    {**NET, "routes": [{"destination": "10.8.0.0/16", "type": "prohibit"}]}),
    "routes.multipath.gateway": (paths({"gateway": "10.0.0.3"}), paths({"gateway": "10.0.0.4"})),
    "routes.multipath.weight": (paths({"gateway": "10.0.0.3", "weight": 2}), paths({"gateway": "10.0.0.3"})),
    "rules.priority": (rule(priority=101), rule()),
    "rules.source": (rule(source="10.0.0.0/24"), rule()),
    "rules.destination": (rule(destination="10.9.0.0/16"), rule()),
    "rules.table": (rule(table=101), rule()),
    "rules.fwmark": (rule(fwmark=1), rule()),
    "rules.fwmask": (rule(fwmark=1, fwmask=255), rule(fwmark=1)),
    "rules.iif": (rule(iif="lo"), rule()),
    "rules.oif": (rule(oif="rdma0"), rule()),
    "rules.invert": (rule(source="10.0.0.0/24", invert=True), rule(source="10.0.0.0/24")),
    "rules.suppressPrefixLength": (rule(suppressPrefixLength=0), rule()),
    "neighbors.destination": (
        {**NET, "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:5e:10:00:01"}]},
        {**NET, "neighbors": [{"destination": "10.0.0.8", "hardwareAddr": "02:00:5e:10:00:01"}]},
    ),
    "neighbors.hardwareAddr": (
        {**NET, "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:5e:10:00:01"}]},
        {**NET, "neighbors": [{"destination": "10.0.0.9", "hardwareAddr": "02:00:5e:10:00:02"}]},
    ),
    "ethtool.features": ({**NET, "ethtool": {"features": {"tx-tcp-segmentation": False}}}, NET),
    "ethtool.privateFlags": ({**NET, "ethtool": {"privateFlags": {"rx_cqe_moder": True}}}, NET),
    "use": ({"use": "storage"}, {"use": "compute"}),
    "prove": ({"prove": True}, {"prove": False}),
    "userspace": ({"userspace": "off"}, {"userspace": "check"}),
    "roceVersion": ({"roceVersion": 1}, {"roceVersion": 2}),
    "devices": ({"devices": ["uverbs", "umad"]}, {}),
    "memlock": ({"memlock": 1 << 20}, {}),
    "limits.hcaHandles": ({"limits": {"hcaHandles": 8}}, {}),
    "limits.hcaObjects": ({"limits": {"hcaObjects": 8}}, {}),
}  # fmt: skip
"""For each key a request with it, and one without it or with another value."""


def keys_of(value: object, path: str = "") -> Iterator[str]:
    """Each key of a request that has a value of its own; the names of features and flags are the driver's."""
    match value:
        case dict() if path not in {"ethtool.features", "ethtool.privateFlags"}:
            for key, part in value.items():
                yield from keys_of(part, f"{path}.{key}" if path else key)
        case [dict(), *_]:
            for part in value:
                yield from keys_of(part, path)
        case _:
            yield path


def outcome(daemon: InsideDaemon, request: Request) -> list[object]:
    """What the kernel and the containers of a pod with this request are told, which are proven and whose images are
    checked; the refusal of one that is refused."""
    annotations = {"rdma.noderesource.dev/pod": json.dumps([request])}
    daemon.engine.offering.policy = FREE
    try:
        pod = daemon.start_pod("one", annotations)
    except NriRdmaError as error:
        return [error.code, error.what]
    told: list[object] = []
    for attachment in daemon.sandboxes.of(pod.sandbox_id):
        record = attachment.now.record
        assert record is not None
        told += [(it.device, it.link.name, it.pod_name, [*map(_told, ops_of(it))]) for it in record.plan.moves]
        told += [record.plan.rdma_moves]
    parts = daemon.sandboxes.of(pod.sandbox_id)
    for container in ("trainer", "other"):
        told += [daemon.edits(pod, annotations, container), concerns(parts, container)]
        told += [daemon.engine.starts.gate.asks(parts, container)]
    daemon.stop_pod(pod)
    return told


def _told(op: Op) -> Op | str:
    """An operation, without the message that the kernel has about an address of the host."""
    return op.describe() if isinstance(op, Inherit) else op


def test_each_key_is_looked_at() -> None:
    keys = {*keys_of(FULL), *keys_of(IN_VRF, "interface")}
    assert keys - EFFECTS.keys() == set(), f"write a row for each into EFFECTS ({__file__})"
    assert EFFECTS.keys() - keys == set(), "the grammar has no such keys: take the rows out"


@pytest.mark.parametrize("key", EFFECTS)
def test_it_has_an_effect(daemon: InsideDaemon, key: str) -> None:
    daemon.add_rdma_devices()
    for device in daemon.world.rdma:
        device.gids = tuple(
            Gid(index=index, value=IPv6Address("::ffff:198.51.0.1"), type=kind) for index, kind in enumerate(ROCE)
        )
    daemon.make_cgroups("/pod")
    for number, link in enumerate(daemon.world.host.links.values()):
        link.addresses.append(
            Address(interface=ip_interface(f"198.51.{number}.1/24"), label=link.name)
        )  # to be inherited
    with_it, without = EFFECTS[key]
    before = outcome(daemon, without)
    assert outcome(daemon, without) == before, "one pod after the other gets the same"
    assert outcome(daemon, with_it) != before, f"{key} changes nothing: neither what the kernel is told nor a container"
