"""Every key of a netdev's network needs a right, and a stranger has few of them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any  # Any: a value of any field

import pytest

from nri_rdma.model.network import VrfConfig
from nri_rdma.model.request import DeviceRequest, InterfaceConfig
from nri_rdma.model.rights import DEFAULT_RIGHTS, InterfaceRight, rights_needed
from tests.unit.text.asking import requests
from tests.unit.text.request_cases import FULL


def test_a_request_with_every_key_needs_every_right() -> None:
    (request,) = requests(json.dumps([FULL]))
    request = replace(request, interface=replace(request.interface, vrf=VrfConfig(name="red", table=100)))
    assert {right for right, _ in rights_needed(request)} == set(InterfaceRight)


def test_a_request_that_says_nothing_needs_none() -> None:
    assert list(rights_needed(DeviceRequest(name="a", where="here"))) == []


@pytest.mark.parametrize("field", [item.name for item in fields(InterfaceConfig) if item.name != "inherit"])
def test_no_field_of_an_interface_needs_no_right(field: str) -> None:
    other: dict[str, Any] = {field: "something"}
    interface = replace(InterfaceConfig(), **other)
    needed = [key for _, key in rights_needed(DeviceRequest(name="a", where="here", interface=interface))]
    assert len(needed) == 1, f"write one row for {field} into _OF_INTERFACE, in nri_rdma/model/rights.py"
    assert needed[0].startswith("interface.")


def test_to_take_less_along_than_usual_needs_no_right() -> None:
    request = DeviceRequest(name="a", where="here", interface=InterfaceConfig(inherit=False))
    assert list(rights_needed(request)) == []


def test_strangers_have_what_harms_nobody() -> None:
    assert {"name", "mtu", "addresses", "arp", "ipv6", "offload"} == DEFAULT_RIGHTS
