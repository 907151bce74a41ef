"""A dry run finds out what an attach would refuse."""

import pytest

from nri_rdma.model.usage import HostSocket
from tests.unit.commands.dryrun.looking import Looking


def test_what_only_the_plan_refuses_is_refused_too(looking: Looking) -> None:
    pod = looking.pod("name", "- {interface: {name: eth0}}")
    looking.connect().run_pod_sandbox(pod)
    assert looking.line("pod", "name")["code"] == "NAME-CONFLICT"
    assert not looking.reservations.taken()


@pytest.mark.parametrize(
    ("request_text", "would", "code"),
    [("1", "attach", None), ("- {match: {netdev: rail0}}", "refuse", "DEVICE-IN-USE")],
    ids=["another", "no other"],
)
def test_where_the_host_has_come_to_use_a_device_the_pod_would_get_another_one(
    looking: Looking, request_text: str, would: str, code: str | None
) -> None:
    world = looking.inside.world
    rail0 = next(link for link in world.host.links.values() if link.name == "rail0")
    world.sockets.append(HostSocket(protocol="udp", address=None, port=319, ifindex=rail0.ifindex))
    runtime = looking.connect()
    runtime.run_pod_sandbox(looking.pod("one", request_text))
    told = looking.line("pod", "one")
    assert (told["would"], told.get("code")) == (would, code)
