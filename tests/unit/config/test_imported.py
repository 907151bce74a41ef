"""Configurations of k8s-rdma-shared-dev-plugin (at 410b0f3) as ours: what its own tests take and refuse, as a table."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from nri_rdma.config.imported import Fate, Imported, imported
from nri_rdma.config.settings import Document, load
from nri_rdma.errors import SettingError
from nri_rdma.model.device import LinkLayer, Netdev, Port
from nri_rdma.model.pool import Pool, PoolDoor, ShareGives
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.model.hardware import nic

TWO = {
    "configList": [
        {"resourceName": "hca_shared_devices_a", "rdmaHcaMax": 1000, "devices": ["ib0", "ib1"]},
        {
            "resourceName": "hca_shared_devices_b",
            "rdmaHcaMax": 500,
            "selectors": {"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["ib2", "ib3"]},
        },
    ],
    "periodicUpdateInterval": 30,
}


def one(**more: Any) -> dict[str, Any]:
    """A configuration with one resource."""
    return {"configList": [{"resourceName": "test_config", "rdmaHcaMax": 100, **more}]}


def took(document: object) -> Imported:
    return imported(json.dumps(document), "FILE")


def pools(document: object) -> tuple[Pool, ...]:
    """What a daemon makes of our configuration."""
    return load({}, {}, Document(name="FILE", text=took(document).toml)).settings.pools


def test_the_example_of_two_resources_is_two_pools() -> None:
    first, second = pools(TWO)
    assert (first.name, first.resource, first.shares) == (
        "hca-shared-devices-a",
        "rdma/hca_shared_devices_a",
        1000,
    )
    assert (first.door, first.gives) == (PoolDoor.RESOURCE, ShareGives.ALL)
    assert second.resource == "rdma/hca_shared_devices_b"
    told = tomllib.loads(took(TWO).toml)["pools"]
    assert told["hca-shared-devices-a"]["select"] == {"netdev": ["ib0", "ib1"]}
    assert told["hca-shared-devices-b"]["select"] == {
        "vendor": ["15b3"],
        "deviceID": ["1017"],
        "netdev": ["ib2", "ib3"],
    }


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(one(devices=["ib0"]), id="devices"),
        pytest.param(one(selectors={"vendors": ["15b3"], "deviceIDs": ["1017"], "ifNames": ["eth1"]}), id="selectors"),
        pytest.param(one(resourcePrefix="example.com", devices=["ib0"]), id="a prefix"),
        pytest.param(one(devices=[], selectors={"ifNames": ["eth1"]}), id="empty devices"),
        pytest.param(one(devices=["ib0"], selectors={}), id="empty selectors"),
        pytest.param({**one(devices=["ib0"]), "periodicUpdateInterval": 0}, id="no periodic update"),
        pytest.param(one(selectors={"linkTypes": ["ether", "infiniband"]}), id="link types"),
    ],
)
def test_what_they_take_is_a_pool(document: object) -> None:
    (pool,) = pools(document)
    assert (pool.shares, pool.name) == (100, "test-config")


@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        pytest.param({}, "configList", "no resources are configured", id="no list"),
        pytest.param({"configList": []}, "configList", "no resources are configured", id="an empty list"),
        pytest.param(
            {"configList": [{"resourceName": "test_config$$", "rdmaHcaMax": 100, "devices": ["ib0"]}]},
            "configList[0].resourceName",
            "'test_config$$' is not allowed",
            id="a name",
        ),
        pytest.param(
            {"configList": [{"resourceName": "_config_", "rdmaHcaMax": 100, "devices": ["ib0"]}]},
            "configList[0].resourceName",
            "'_config_' is not allowed",
            id="a name that Kubernetes refuses",
        ),
        pytest.param(
            {"configList": one(devices=["ib0"])["configList"] + one(devices=["ib1"])["configList"]},
            "configList[1].resourceName",
            "test_config is the name of configList[0]",
            id="a name twice",
        ),
        pytest.param(one(rdmaHcaMax=-100, devices=["ib0"]), "configList[0].rdmaHcaMax", "'-100'", id="fewer than none"),
        pytest.param(
            one(devices=["eth0"], selectors={"ifNames": ["eth1"]}), "configList[0]", "both devices and sel", id="both"
        ),
        pytest.param(one(), "configList[0]", "neither selectors nor devices", id="neither"),
        pytest.param(
            {**one(devices=["ib0"]), "periodicUpdateInterval": -10}, "periodicUpdateInterval", "'-10'", id="an interval"
        ),
        pytest.param(one(selectors={"linkTypes": ["fddi"]}), "configList[0].selectors.linkTypes[0]", "fddi", id="link"),
        pytest.param(one(devices="ib0"), "configList[0].devices", "is not a list", id="no list of devices"),
        pytest.param({"configList": [{"devices": ["ib0"]}]}, "configList[0].resourceName", "missing", id="no name"),
        pytest.param([], "", "no JSON object", id="no object"),
        pytest.param(
            one(selectors={"deviceIDs": ["1017", "x"]}),
            "configList[0].selectors.deviceIDs[1]",
            "'x'",
            id="an id of ours",
        ),
        pytest.param(one(devices=["ib0", "a b"]), "configList[0].devices[1]", "'a b'", id="a netdev's name"),
        pytest.param(
            {
                "configList": [
                    {"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["ib0", "ib1"]}},
                    {"resourceName": "b", "rdmaHcaMax": 1, "selectors": {"ifNames": ["ib1", "ib0"]}},
                ]
            },
            "configList[1].selectors",
            "it selects the same devices as configList[0], and a device of ours is in one pool only",
            id="equal selectors",
        ),
        pytest.param(
            {
                "configList": [
                    {"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"ifNames": ["ib0"]}},
                    {"resourceName": "b", "rdmaHcaMax": 1, "devices": ["ib0"]},
                ]
            },
            "configList[1].devices",
            "it selects the same devices as configList[0]",
            id="a selector and a device that are equal",
        ),
    ],
)
def test_what_they_refuse_is_refused_with_its_place(document: object, where: str, what: str) -> None:
    with pytest.raises(SettingError) as caught:
        took(document)
    assert caught.value.where == (f"FILE: {where}" if where else "FILE")
    assert what in caught.value.what
    assert caught.value.hint


def test_a_file_that_is_no_json_is_refused_with_its_line() -> None:
    text = '{"configList": [{\n"resourceName": "hca_shared_devices_a",\n"devices": ["ib0"]\n}}},\n]}'
    with pytest.raises(SettingError, match="FILE"):
        imported(text, "FILE")


def test_a_resource_without_shares_is_left_out_and_said() -> None:
    found = took(one(rdmaHcaMax=0, devices=["ib0"]))
    (note,) = found.notes
    assert (found.toml, note.path, note.fate) == ("", "configList[0]", Fate.LEFT_OUT)
    assert note.words == "rdmaHcaMax is 0: rdma/test_config has no shares"


def test_each_key_has_its_note_and_unknown_ones_too() -> None:
    document = {**one(devices=["ib0"], odd=1, resourcePrefix="rdma"), "more": {}}
    fates = {note.path: note.fate for note in took(document).notes}
    assert fates == {
        "more": Fate.LEFT_OUT,
        "configList[0].resourceName": Fate.TAKEN,
        "configList[0].resourcePrefix": Fate.TAKEN,
        "configList[0].rdmaHcaMax": Fate.TAKEN,
        "configList[0].devices": Fate.TAKEN,
        "configList[0].odd": Fate.LEFT_OUT,
        "/dev/infiniband/umad*": Fate.LEFT_OUT,
    }


def test_more_shares_than_a_pool_may_have_are_as_many_as_it_may_have() -> None:
    document = one(rdmaHcaMax=1_000_000, devices=["ib0"])
    (pool,) = pools(document)
    assert pool.shares == 10_000
    assert {note.path: note.fate for note in took(document).notes}["configList[0].rdmaHcaMax"] is Fate.CHANGED


@pytest.mark.parametrize(
    ("name", "pool"), [("0a", "pool-0a"), ("A_b", "A-b"), ("hca_shared_devices_a", "hca-shared-devices-a")]
)
def test_a_pool_is_called_as_its_resource_where_it_can(name: str, pool: str) -> None:
    (made,) = pools({"configList": [{"resourceName": name, "rdmaHcaMax": 1, "devices": ["ib0"]}]})
    assert (made.name, made.resource) == (pool, f"rdma/{name}")


def test_resources_whose_pools_would_have_one_name_have_pools_of_several() -> None:
    long = "a" * 63
    names = ("1a", "pool_1a", f"{long[:-1]}b", f"{long[:-1]}c")
    made = pools(
        {
            "configList": [
                {"resourceName": name, "rdmaHcaMax": 1, "devices": [f"ib{number}"]} for number, name in enumerate(names)
            ]
        }
    )
    assert [pool.resource for pool in made] == [f"rdma/{name}" for name in names]
    assert [pool.name for pool in made[:2]] == ["pool-1a", "pool-1a-2"]
    assert made[3].name == f"{made[2].name[:-2]}-2"


def test_equal_selectors_of_a_resource_without_shares_are_nobodys() -> None:
    (pool,) = pools(
        {
            "configList": [
                {"resourceName": "a", "rdmaHcaMax": 0, "devices": ["ib0"]},
                {"resourceName": "b", "rdmaHcaMax": 1, "devices": ["ib0"]},
            ]
        }
    )
    assert pool.name == "b"


def test_their_selectors_select_what_theirs_do() -> None:
    """Their own test of the filter: five devices, of which the first two fulfil all selectors."""
    ether, ib = (
        Port(number=1, link_layer=layer, state="ACTIVE", speed_gbps=100)
        for layer in (LinkLayer.ETHERNET, LinkLayer.INFINIBAND)
    )
    rows = [
        ("15b3", "1017", "mlx5_core", "enp2s0f0", ether),
        ("8080", "2031", "igb", "enp2s0f1", ether),
        ("15b3", "1017", "broadcom", "eth0", ether),
        ("8080", "1234", "igb", "eth1", ether),
        ("15b3", "1017", "mlx5_core", "enp4s0f0", ib),
    ]
    devices = [
        replace(
            nic(number),
            vendor=vendor,
            device_id=device_id,
            driver=driver,
            netdevs=(Netdev(name=name, ifindex=number + 1, mac="", mtu=1500, up=True),),
            ports=(port,),
        )
        for number, (vendor, device_id, driver, name, port) in enumerate(rows)
    ]
    selectors = {
        "vendors": ["15b3", "8080"],
        "deviceIDs": ["1017", "2031"],
        "drivers": ["mlx5_core", "igb"],
        "ifNames": ["enp2s0f0", "enp2s0f1", "enp4s0f0"],
        "linkTypes": ["ether"],
    }
    (pool,) = pools(one(selectors=selectors))
    assert [pool.has(device) for device in devices] == [True, True, False, False, False]


def test_the_command_prints_a_configuration_that_can_be_used(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TWO))
    done = nri_rdma("config", "import", tmp_path / "config.json")
    assert done.returncode == 0
    assert "periodicUpdateInterval: left out: nri-rdma hears of changes from the kernel" in done.stderr
    (tmp_path / "config.toml").write_text(done.stdout)
    assert "2 pools" in nri_rdma("config", "check", tmp_path / "config.toml").stdout
    (tmp_path / "config.json").write_text("{}")
    refused = nri_rdma("config", "import", tmp_path / "config.json")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no resources are configured" in refused.stderr


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(one(resourcePrefix="\x1b]0;PWN\x07\x1b[31mX")),
        json.dumps(one(devices=["a"], linkTypes="\x1b[31m")),
        json.dumps(one(selectors={"linkTypes": ["\x1b[31mX"]})),
        '{"configList": [], "\x1b[31mX": 1, "\x1b[31mX": 2}',
        '{"configList": [], "\\u001b[31mX": 1, "\\u001b[31mX": 2}',
        json.dumps(one(devices=["\x1b[31mX", "\u202e"])),
        json.dumps(one(**{"\x1b[31mkey": 1})),
    ],
)
def test_control_characters_of_a_file_do_not_reach_the_terminal(text: str) -> None:
    try:
        found = imported(text, "FILE")
        shown = found.toml.replace("\n", "") + "".join(f"{it.path} {it.words}" for it in found.notes)
    except SettingError as error:
        shown = str(error)
    assert shown.isprintable(), ascii(shown)


def test_so_many_shares_that_none_has_a_limit_are_told_with_what_to_write() -> None:
    (few,), (many,) = (
        [it.words for it in took(one(rdmaHcaMax=shares, devices=["ib0"])).notes if it.path.endswith("rdmaHcaMax")]
        for shares in (127, 128)
    )
    assert few == "shares; a share may have its part of a device, unless you write limits"
    assert "no share has a limit where its part is smaller than 1024 objects" in many
    assert many.endswith("(131072 queue pairs): write limits, or at most 127 shares")


def test_a_config_map_is_read_as_the_file_in_it() -> None:
    config_map = {"kind": "ConfigMap", "data": {"config.json": json.dumps(TWO)}}
    assert took(config_map) == took(TWO)
    two = {"kind": "ConfigMap", "data": {"a": "{}", "b": "{}"}}
    with pytest.raises(SettingError, match="a ConfigMap with 2 files, FILE: data"):
        took(two)


def test_a_configuration_of_the_sriov_plugin_is_called_by_its_name() -> None:
    with pytest.raises(SettingError, match="sriov-network-device-plugin") as refusal:
        took({"resourceList": [{"resourceName": "mlx", "selectors": {"vendors": ["15b3"]}}]})
    assert 'gives = "device"' in refusal.value.hint
