"""What the daemon tells of itself over its control socket."""

from dataclasses import replace

from nri_rdma.config.settings import Document, Memlock, load
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.status_document import guard_document, status_document
from nri_rdma.engine.guard import Contacts
from nri_rdma.model.capacity import RdmaCapacity
from tests.unit.rigs.inside_daemon import MEMLOCK, InsideDaemon

PREFIX = "rdma.noderesource.dev"


def test_status_tells_holders_sandboxes_and_moves(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    document = ask_status(daemon.settings.control_path)
    assert document["devices"][2]["holders"] == [{"pod": "default/one", "mode": "exclusive", "gpus": []}]
    assert document["devices"][2]["netdevs"] == []
    (sandbox,) = document["sandboxes"]
    assert (sandbox["pod"], sandbox["state"], sandbox["devices"]) == ("default/one", "attached", ["mlx5_2"])
    assert sandbox["moves"][0]["netdev"]["name"] == "rail2"
    assert sandbox["moves"][0]["pod_name"] == "rdma0"
    assert document["namespaces_held"] == 1
    assert document["memlock"]["bytes"] == MEMLOCK


def test_the_guard_is_warned_of_when_it_never_asked_or_was_not_asked(daemon: InsideDaemon) -> None:
    told = guard_document(Contacts(), ())
    assert (told["active"], bool(told["warning"])) == ("unknown", True)
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    (sandbox,) = daemon.sandboxes.all()
    asked = Contacts(asked=2, refused=1, last=5.0)
    told = guard_document(asked, (sandbox,))
    assert (told["active"], told["warning"], told["unguarded"]) == ("createRuntime hook", "", [])
    sandbox.containers.unguarded.add("main")
    told = guard_document(asked, (sandbox,))
    assert (bool(told["warning"]), told["unguarded"]) == (True, ["default/one, container main"])


def test_before_a_runtime_was_heard_of_there_is_no_ceiling_to_name(daemon: InsideDaemon) -> None:
    settings = replace(daemon.settings, memlock=Memlock(automatic=True))
    facts = replace(daemon.facts, settings=settings)
    facts.engine.offering.memlock = MemlockBounds()
    told = status_document(facts, started=0.0, guard={})["memlock"]
    assert (told["bytes"], told["reason"]) == (None, "no runtime has connected yet")


def test_status_tells_which_devices_each_pool_has_and_which_are_contested(daemon: InsideDaemon) -> None:
    settings = load({}, {}, Document(name="FILE", text=POOLS)).settings
    daemon.engine.offering.policy = policy_of(settings.pools, settings.rules, allow_default_pool=False)
    told = {pool["name"]: pool for pool in ask_status(daemon.settings.control_path)["pools"]}
    assert told["default"]["devices"] == ["mlx5_1", "mlx5_3"]
    assert told["gold"]["devices"] == ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]
    assert [pool["contested"] for pool in told.values()] == [["mlx5_2"], ["mlx5_2"]]


def test_status_tells_what_a_share_may_have_of_each_device_and_why(daemon: InsideDaemon) -> None:
    settings = load({}, {}, Document(name="FILE", text=SHARES)).settings
    daemon.engine.offering.policy = policy_of(settings.pools, (), allow_default_pool=False)
    cache = daemon.engine.node
    first = cache.current.devices[0].id
    cache.current = replace(cache.current, rdma_cgroup=True, capacities={first: RdmaCapacity(ah=32767)})
    (pool,) = ask_status(daemon.settings.control_path)["pools"]
    assert pool["limits"] == {
        "mlx5_0": {
            "hca_handle": 204,
            "hca_object": 6553,
            "why": "32767 ah among 4 shares and the host",
            "words": "hca_handle=204 hca_object=6553 (32767 ah among 4 shares and the host)",
        },
        "mlx5_1": {
            "hca_handle": None,
            "hca_object": None,
            "why": "its capacity was not asked yet",
            "words": "no limits (its capacity was not asked yet)",
        },
    }


SHARES = """
[pools.hcas]
select = { device = ["mlx5_0", "mlx5_1"] }
modes = ["shared"]
door = "resource"
resource = "rdma/hca"
shares = 8
"""
POOLS = """
[pools.default]
select = { numaNode = 0 }
exclude = { device = "mlx5_0" }
modes = ["exclusive", "shared"]
maxLimits = { hcaHandles = 2 }
[pools.gold]
select = [{ numaNode = 1 }, { device = "mlx5_2" }]
modes = ["shared"]
[[rules]]
name = "no sandboxes"
runtimeHandlers = ["kata"]
allow = false
[[rules]]
pools = ["gold"]
podLabels = { team = "ml" }
devices = ["umad", "uverbs"]
[[rules]]
pools = ["default"]
interface = ["mtu"]
"""
