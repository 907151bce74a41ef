"""The version of CDI that a spec declares is the least one that its content needs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.reading import inspect
from nri_rdma.cdi.spec import (
    Spec,
    Version,
)
from nri_rdma.cdi.version import minimum_version
from nri_rdma.errors import ErrorCode
from tests.unit.cdi.made_specs import SPECS, slowly


@slowly(25)
@given(SPECS)
def test_a_spec_is_read_in_its_minimum_version_and_in_none_before(spec: Spec) -> None:
    minimum = list(Version).index(minimum_version(spec))
    for number, version in enumerate(Version):
        codes = {problem.code for problem in inspect(encode(replace(spec, version=version)), "FILE").problems}
        assert codes == ({ErrorCode.CDI_VERSION} if number < minimum else set())
