"""Keys of other network drivers are refused as not supported yet, and the page lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode
from nri_rdma.text.forms import names_of
from nri_rdma.text.network import ETHTOOL_KEYS, NEIGHBOUR_KEYS, ROUTE_KEYS, RULE_KEYS, VRF_KEYS
from nri_rdma.text.nodes import node_of
from nri_rdma.text.requests import ALIGN_KEYS, INTERFACE_KEYS, REQUEST_KEYS, read_parameters
from nri_rdma.text.unsupported import UNSUPPORTED, unknown_request_key
from tests.unit.text.asking import refusal

PAGE = (Path(__file__).resolve().parents[3] / "docs/requests.md").read_text()
LATER = {"dhcp", "addressing", "ipRanges", "type", "ipvlan", "profile"}
"""Keys of DRANET that wait for a later version."""
DRANET = {
    *(
        "name",
        "addresses",
        "dhcp",
        "mtu",
        "hardwareAddr",
        "gsoMaxSize",
        "groMaxSize",
        "gsoIPv4MaxSize",
        "groIPv4MaxSize",
    ),
    *("disableEbpfPrograms", "forwarding", "arpIgnore", "arpAnnounce", "enableIPv6", "vrf", "type", "ipvlan"),
    *("addressing", "ipRanges", "profile", "routes", "rules", "neighbors", "ethtool"),
    *("destination", "gateway", "source", "scope", "table", "priority", "features", "privateFlags"),
}


@pytest.mark.parametrize("key", UNSUPPORTED)
@pytest.mark.parametrize("text", ["{{{key}: 1}}", "[{{mode: exclusive, interface: {{{key}: 1}}}}]"])
def test_a_key_of_another_driver_is_not_supported_yet(key: str, text: str) -> None:
    error = refusal(text.format(key=key))
    assert (error.code, error.what) == (ErrorCode.ANNOTATION_UNKNOWN_KEY, f"'{key}' is not supported yet")
    assert error.hint.startswith("leave it out; ")


def test_every_key_of_dranets_configuration_is_supported_or_named_for_later() -> None:
    tables = (REQUEST_KEYS, INTERFACE_KEYS, ROUTE_KEYS, RULE_KEYS, NEIGHBOUR_KEYS, VRF_KEYS, ETHTOOL_KEYS)
    supported = {name for table in tables for name in names_of(table)}
    assert DRANET - supported == LATER - {"type"}  # of a route it is supported
    assert set(UNSUPPORTED) >= LATER


@pytest.mark.parametrize("key", ["linkState", "spoofChk", "min-tx-rate", "IPRanges"])
def test_another_spelling_is_the_same_key(key: str) -> None:
    assert "is not supported yet" in unknown_request_key(key, ("mtu",), "pod").what


def test_what_nobody_knows_is_an_unknown_key() -> None:
    assert unknown_request_key("mtuu", ("mtu",), "pod").what == "unknown key 'mtuu'"


def test_a_supported_key_is_not_in_the_list() -> None:
    supported = {*names_of(REQUEST_KEYS), *names_of(INTERFACE_KEYS), *names_of(ALIGN_KEYS)}
    assert supported & set(UNSUPPORTED) == set()


def test_a_claims_parameters_are_refused_in_the_same_words() -> None:
    with pytest.raises(Exception, match="'profile' is not supported yet"):
        read_parameters(node_of({"profile": "fast"}), "claim", 1)


def test_the_page_lists_them() -> None:
    section = PAGE.split("## Network settings")[1].split("\n## ")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| ") and "not supported" in row]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row[1])}
    assert listed == set(UNSUPPORTED), (
        "docs/requests.md, Network settings: list the keys of nri_rdma/text/unsupported.py"
    )
