"""A CDI spec as text is JSON, and the same spec again when it is read."""

from __future__ import annotations

import json

from hypothesis import given

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import (
    Spec,
)
from tests.unit.cdi.made_specs import SPECS, slowly


@slowly(50)
@given(SPECS)
def test_a_spec_is_the_same_after_writing_and_reading(spec: Spec) -> None:
    assert [it["name"] for it in json.loads(encode(spec))["devices"]] == [it.name for it in spec.devices]
    assert parse(encode(spec), "FILE") == spec
    assert encode(parse(encode(spec), "FILE")) == encode(spec)
