"""The doctor on Python, the packages and the configuration."""

from dataclasses import replace

import pytest

from nri_rdma import __version__
from nri_rdma.commands.doctor import software
from nri_rdma.commands.doctor.finding import Finding
from nri_rdma.config.settings import Document, load
from nri_rdma.errors import SettingError
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench


def test_a_python_that_is_too_old_is_a_problem(bench: Bench) -> None:
    assert bench.finds(software.python) == Finding(check="python", result=OK, found="Python 3.12.1")
    bench.python = (3, 10, 12)
    found = bench.finds(software.python)
    assert (found.result, found.fix) == (PROBLEM, "install it with Python 3.11 or newer")


def test_packages_that_are_there_in_their_versions_are_fine(bench: Bench) -> None:
    found = bench.finds(software.packages)
    assert (found.result, found.found) == (OK, f"nri-rdma {__version__}, with all that it depends on")


def test_a_package_that_is_missing_or_of_another_version_is_a_problem(bench: Bench) -> None:
    bench.install("nri-rdma", __version__, "protobuf<8,>=6.31.1", "click<9,>=8.1", "pyroute2<0.10,>=0.9.4")
    bench.install("click", "9.0")
    found = bench.finds(software.packages)
    assert found.result is PROBLEM
    assert "click is 9.0, and has to be <9,>=8.1" in found.found
    assert "pyroute2 is missing" in found.found
    assert "protobuf" not in found.found


CLAIMED = Pool(name="nics", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)
EXTRAS = ('kubernetes>=33; extra == "claims"', "exporter-http>=1.30; extra == 'otlp'")


def test_a_pool_of_claims_without_its_package_is_a_problem(bench: Bench) -> None:
    bench.install("nri-rdma", __version__, *EXTRAS)
    assert bench.finds(software.packages).result is OK
    bench.settings = replace(bench.settings, allow_default_pool=False, pools=(CLAIMED,))
    found = bench.finds(software.packages)
    assert found.result is PROBLEM
    assert 'kubernetes is missing, which pool nics (door = "claims") needs' in found.found
    assert "exporter" not in found.found
    assert "FILE.whl[claims]" in found.fix
    bench.install("kubernetes", "34.1.0")
    assert bench.finds(software.packages).result is OK


@pytest.mark.parametrize("where", ["variable", "file of the unit"])
def test_an_exporter_that_is_asked_for_and_not_installed_is_a_problem(bench: Bench, where: str) -> None:
    bench.install("nri-rdma", __version__, *EXTRAS)
    if where == "variable":
        bench.environment["OTEL_TRACES_EXPORTER"] = "otlp"
    else:
        bench.write("etc/nri-rdma/environment", "# ours\nNRI_RDMA_LOG_LEVEL=info\nOTEL_TRACES_EXPORTER=otlp\n")
    found = bench.finds(software.packages)
    assert found.result is PROBLEM
    assert "exporter-http is missing, which OTEL_TRACES_EXPORTER = otlp needs" in found.found
    assert "FILE.whl[otlp]" in found.fix
    bench.environment["OTEL_SDK_DISABLED"] = "true"  # the daemon exports nothing then
    assert bench.finds(software.packages).result is OK


def test_a_program_that_is_not_installed_has_no_packages_to_check(bench: Bench) -> None:
    bench.packages.rename(bench.folder / "elsewhere")
    assert bench.finds(software.packages).result is NA


def test_no_configuration_file_is_no_problem(bench: Bench) -> None:
    found = bench.finds(software.configuration)
    assert (found.result, found.found.endswith("is not there: defaults, flags and environment count")) == (OK, True)


def test_a_configuration_file_that_can_be_used_is_counted(bench: Bench) -> None:
    bench.write("etc/nri-rdma/config.toml", "")
    bench.settings = replace(bench.settings, pools=(Pool(name="gold", modes=(Mode.SHARED,)),))
    found = bench.finds(software.configuration)
    assert (found.result, found.found.endswith("config.toml: 1 pool, 0 rules")) == (OK, True)


def test_a_configuration_that_cannot_be_used_is_told_with_file_line_and_key(bench: Bench) -> None:
    file = bench.write("etc/nri-rdma/config.toml", '\n[pools.gold]\nmodez = ["shared"]\n')
    with pytest.raises(SettingError) as refused:
        load({}, {}, Document.read(file))
    bench.setting_error = refused.value
    found = bench.finds(software.configuration)
    assert found.result is PROBLEM
    assert f"{file}:" in found.found
    assert "modez" in found.found
    assert "modes" in found.fix


@pytest.mark.parametrize("where", ["environment", "file of the unit"])
def test_a_variable_with_a_typo_is_named_with_the_one_that_was_meant(bench: Bench, where: str) -> None:
    if where == "environment":
        bench.environment["NRI_RDMA_METRICS_ADRESS"] = "x"
    else:
        bench.write("etc/nri-rdma/environment", "# of the unit\nNRI_RDMA_METRICS_ADRESS=x\n")
    found = software.configuration(bench.machine)
    assert found.result is WARNING
    assert found.found == "nothing reads NRI_RDMA_METRICS_ADRESS: no setting has that variable"
    assert found.fix == "write NRI_RDMA_METRICS_ADDRESS, and restart the daemon"
