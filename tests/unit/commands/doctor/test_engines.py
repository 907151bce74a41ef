"""The doctor names container engines that are not served."""

import pytest

from nri_rdma.commands.doctor import engines
from tests.unit.commands.doctor.bench import NA, OK, Bench


def test_where_there_is_none_all_is_well(bench: Bench) -> None:
    assert bench.finds(engines.others).result is OK


@pytest.mark.parametrize("name", ["apptainer", "enroot", "nerdctl"])
def test_one_that_is_there_is_named(bench: Bench, name: str) -> None:
    bench.write(f"usr/local/bin/{name}", "")
    found = bench.finds(engines.others)
    assert (found.result, found.found) == (
        NA,
        f"{name}: nri-rdma does not serve their containers (docs/podman.md says why)",
    )
