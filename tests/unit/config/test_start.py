"""A start reads what can be read. What decides who gets what is closed where it cannot; all else has its default."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.config.settings import Loaded, Memlock, Settings, load_settings
from nri_rdma.config.start import BESIDE_THE_JOB, load_to_start, start_troubles
from nri_rdma.decide.policy import admit, configured_policy
from nri_rdma.errors import ErrorCode, NriRdmaError, SettingError
from nri_rdma.model.adoption import Adopt
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.pool import Asker, PoolDoor
from nri_rdma.model.trouble import Part
from nri_rdma.text.annotations import PREFIX, parse_pod_request

RAILS = '[pools.rails]\nmodes = ["shared"]\nselect = { device = "mlx5_0" }\n'
NODE = Node(devices=(), gpus=(), rdma_cm=None, rdma_netns=RdmaNetns.SHARED, rdma_cgroup=False)


def started(text: str, **variables: str) -> Loaded:
    return load_to_start({}, variables, sent=text or "# nothing")


def code_of(loaded: Loaded, pool: str) -> ErrorCode | None:
    """The code with which a pod is refused that asks for the pool."""
    request = parse_pod_request({f"{PREFIX}/pod": f"[{{pool: {pool}, mode: shared}}]"})
    assert request is not None
    try:
        admit(configured_policy(loaded.settings, loaded.closed), NODE, request, Asker(namespace="default"))
    except NriRdmaError as error:
        return error.code
    return None


def test_what_can_be_read_is_what_any_command_reads() -> None:
    loaded = started(RAILS)
    assert (loaded.settings, loaded.problems, loaded.closed) == (load_settings({}, {}, sent=RAILS), (), "")
    assert code_of(loaded, "rails") is None


@pytest.mark.parametrize("name", sorted(BESIDE_THE_JOB))
def test_a_setting_beside_the_job_has_its_default_and_closes_nothing(name: str) -> None:
    loaded = started(f"{name} = [[]]\n{RAILS}", NRI_RDMA_LOG_FORMAT="json")
    wanted = {"memlock": Memlock()}.get(name, getattr(Settings(), name))
    if name != "log_format":  # whose variable counts
        assert len(loaded.problems) == 1
        assert getattr(loaded.settings, name) == wanted
        assert loaded.settings.log_format == "json"
    assert code_of(loaded, "rails") is None


@pytest.mark.parametrize("name", ["node_ip", "api_server", "sandboxed_handlers", "annotation_prefix", "state_dir"])
def test_a_setting_that_decides_who_gets_what_closes_all_pools(name: str) -> None:
    loaded = started(f"{name} = 3.5\n{RAILS}")
    assert name in loaded.closed
    assert [code_of(loaded, pool) for pool in ("rails", "default")] == [ErrorCode.POOL_CLOSED] * 2


@pytest.mark.parametrize(
    ("name", "closes"), [("metrics_adress", False), ("memlok", False), ("sandboxd_handlers", True), ("xyz", True)]
)
def test_a_name_that_is_no_settings_counts_as_the_nearest_one(name: str, closes: bool) -> None:
    loaded = started(f'{name} = "keep"\n{RAILS}')
    assert bool(loaded.closed) is closes
    assert (loaded.settings.memlock == Memlock()) is (name == "memlok")


def test_of_two_pools_that_cannot_be_there_together_both_are_closed() -> None:
    loaded = started(f'{RAILS}[pools.again]\nmodes = ["exclusive"]\nselect = {{ device = "mlx5_0" }}\n')
    assert [code_of(loaded, pool) for pool in ("rails", "again")] == [ErrorCode.POOL_CLOSED] * 2
    assert code_of(loaded, "nowhere") is ErrorCode.POOL_UNKNOWN


def test_without_a_pool_that_can_be_read_the_default_pool_is_not_there() -> None:
    loaded = started("[pools.Bad_1]\nmodes = []\n")
    assert code_of(loaded, "default") is ErrorCode.POOL_UNKNOWN
    assert code_of(started("pools = 1\n"), "default") is ErrorCode.POOL_CLOSED


def test_a_closed_pool_of_claims_keeps_its_door_so_that_the_kubelet_can_give_back() -> None:
    (pool,) = started('[pools.nics]\nmodes = ["x"]\ndoor = "claims"\n').settings.pools
    assert (pool.door, bool(pool.closed)) == (PoolDoor.CLAIMS, True)


def test_of_rules_that_cannot_be_read_each_is_told_and_the_first_is_the_reason() -> None:
    loaded = started(f"{RAILS}[[rules]]\nx = 1\n[[rules]]\n[[rules]]\ny = 1\n")
    assert [problem.path for problem in loaded.problems] == ["rules[0]", "rules[2]"]
    assert "unknown key 'x'" in loaded.closed
    assert loaded.settings.rules == ()


def test_an_adoption_that_cannot_be_read_is_the_strictest() -> None:
    loaded = started(f'{RAILS}[adopt]\nmode = "enfroce"\n')
    assert loaded.settings.adopt.others.adopt is Adopt.ENFORCE
    assert code_of(loaded, "rails") is None


def test_a_default_pool_beside_pools_opens_nothing() -> None:
    loaded = started(f"allow_default_pool = true\n{RAILS}")
    assert (len(loaded.problems), loaded.settings.allow_default_pool) == (1, False)
    assert code_of(loaded, "rails") is None


def test_the_file_is_read_again_when_it_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    loaded = load_to_start({}, {}, file)
    assert str(file) in loaded.closed
    with pytest.raises(SettingError):
        loaded.again()
    file.write_text(RAILS)
    assert [pool.name for pool in loaded.again().pools] == ["rails"]


def test_everything_is_told() -> None:
    loaded = started("nice = 5\nlog_level = 3\n")
    told = start_troubles(loaded, "no log")
    assert [it.part for it in told] == [Part.SETTINGS, Part.SETTINGS, Part.LOG]
    assert all("nri-rdma: SETTING: " in it.why and "until then its default counts" in it.why for it in told[:2])


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("[pools.rails", "pods that ask for devices are refused"),
        ('[pools.rails]\nmodes = ["x"]\n', "pods that ask for this pool are refused"),
        ("memlock = 0\n", "keep counts"),
        ('[adopt]\nmode = "x"\n', "mode enforce counts"),
    ],
)
def test_each_problem_says_what_it_costs(text: str, cost: str) -> None:
    (told,) = start_troubles(started(text), "")
    assert told.why.endswith(f"; until then {cost}.")


@given(
    text=st.text(max_size=60) | st.builds("{} = {}\n".format, st.sampled_from(sorted(Settings.__slots__)), st.text())
)
def test_whatever_is_sent_a_start_reads_it_and_opens_no_more_than_a_check_would(text: str) -> None:
    loaded = load_to_start({}, {}, sent=text)
    try:
        assert loaded.settings == load_settings({}, {}, sent=text)
    except SettingError:
        assert loaded.problems
        if not _is_toml(text):
            assert loaded.closed


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError):
        return False
    return True


def test_a_guard_resource_that_a_pool_is_asked_by_is_none() -> None:
    loaded = started(
        'guard_resource = "rdma/a"\n[pools.a]\nmodes = ["shared"]\ndoor = "resource"\nresource = "rdma/a"\nshares = 4\n'
    )
    (error,) = loaded.problems
    assert error.what.startswith("rdma/a is also the resource of ")
    assert (loaded.settings.guard_resource, loaded.closed, [it.name for it in loaded.settings.pools]) == ("", "", ["a"])
