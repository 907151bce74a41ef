"""What `nri-rdma config` shows and checks."""

import json
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import PROJECT, assert_one_error, nri_rdma

POOLS = """\
log_level = "debug"
memlock = "unlimited"

[pools.rails]
select = { numaNode = 0 }
exclude = { device = "mlx5_0" }
modes = ["exclusive", "shared"]
maxLimits = { hcaHandles = 2 }

[pools.gold]
select = [{ numaNode = 1 }, { device = "mlx5_2" }]
modes = ["shared"]

[[rules]]
name = "no sandboxes"
runtimeHandlers = ["kata*", ""]
allow = false

[[rules]]
namespaces = ["ml"]
podLabels = { team = ["a", "b"] }
interface = []
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(POOLS)
    return path


def test_it_shows_every_setting_with_its_value_and_where_it_is_from(config: Path, eight: Path) -> None:
    done = nri_rdma(
        *("config", "show", "--config", config, "--sysfs-root", eight, "--log-format", "json"),
        columns=160,
        environment={"NRI_RDMA_TRACING": "no"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.partition("\n\n")[0].splitlines()}
    assert rows["log_level"] == ["debug", f"{config}:1"]
    assert rows["memlock"] == ["unlimited", f"{config}:2"]
    assert rows["log_format"] == ["json", "--log-format"]
    assert rows["tracing"] == ["false", "NRI_RDMA_TRACING"]
    assert rows["annotation_prefix"] == ["rdma.noderesource.dev", "default"]
    assert rows["control_socket"] == ["-", "default"]


def test_it_shows_pools_with_their_devices_and_rules_in_order(config: Path, eight: Path) -> None:
    done = nri_rdma("config", "show", "--config", config, "--sysfs-root", eight, columns=160)
    lines = done.stdout.splitlines()
    for line in (
        f"Pool rails ({config}:4)",
        "  select     numaNode 0",
        "  exclude    device mlx5_0",
        "  maxLimits  hcaHandles 2",
        "  devices    mlx5_1, mlx5_3",
        "  WARNING    other pools select too, so that none has: mlx5_2",
        "  select   numaNode 1",
        "           device mlx5_2",
        f"Rule no sandboxes ({config}:14)",
        "  for    runtime handler 'kata*' or ''",
        "  allow  false",
        f"Rule 2 ({config}:19)",
        "  for        namespace ml and label team a or b",
        "  interface  nothing",
    ):
        assert line in lines, line


def test_without_a_file_it_shows_the_default_pool(eight: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    arguments = ("config", "show", "--config", tmp_path / "empty.toml", "--sysfs-root", eight)
    lines = nri_rdma(*arguments, "--allow-default-pool").stdout.splitlines()
    assert "Pool default (default)" in lines
    assert "  modes    shared, exclusive" in lines
    assert "Without rules every pod may ask every pool." in lines
    assert "  modes    shared" in nri_rdma(*arguments).stdout.splitlines()


def test_it_shows_what_it_can_without_hardware(config: Path, tmp_path: Path) -> None:
    done = nri_rdma("config", "show", "--config", config, "--sysfs-root", tmp_path / "none", columns=300)
    assert done.returncode == 0
    assert "Devices are not shown: this is no sysfs" in done.stdout
    assert f"Pool rails ({config}:4)" in done.stdout


def test_json_has_settings_pools_and_rules(config: Path, eight: Path) -> None:
    done = nri_rdma("config", "show", "--config", config, "--sysfs-root", eight, "-o", "json")
    document = json.loads(done.stdout)
    assert {"name": "log_level", "value": "debug", "from": f"{config}:1"} in document["settings"]
    rails = document["pools"]["rails"]
    assert (rails["modes"], rails["devices"], rails["contested"]) == (
        ["exclusive", "shared"],
        ["mlx5_1", "mlx5_3"],
        ["mlx5_2"],
    )
    assert [rule["name"] for rule in document["rules"]] == ["no sandboxes", "2"]


def test_check_says_what_there_is_in_a_good_file(config: Path) -> None:
    done = nri_rdma("config", "check", config, columns=200)
    assert (done.returncode, done.stdout) == (0, f"{config} can be used: 2 pools, 2 rules.\n")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('modes = ["both"]', "'both' is not allowed, {}:23 rules[1].modes[0]. Next: write one of exclusive, shared."),
        ("podLabels = 1", "Cannot overwrite a value (at line 23, column 14), {}. Next: mend the file."),
    ],
)
def test_check_ends_with_one_and_names_line_and_key(config: Path, wrong: str, told: str) -> None:
    config.write_text(f"{POOLS}{wrong}\n")
    assert told.format(config) in assert_one_error(nri_rdma("config", "check", config), "SETTING", 1)


def test_check_warns_of_a_variable_with_a_typo(config: Path) -> None:
    done = nri_rdma("config", "check", config, environment={"NRI_RDMA_LOG_FORAMT": "json"})
    told = (
        "warning: nothing reads the variable NRI_RDMA_LOG_FORAMT: no setting has it. Next: write NRI_RDMA_LOG_FORMAT."
    )
    assert (done.returncode, done.stderr) == (0, f"{told}\n")


def test_check_tells_everything_that_is_wrong_at_once(config: Path) -> None:
    config.write_text(f'{POOLS}alow = false\n[pools.tin]\nmodes = ["both"]\n'.replace('"debug"', '"loud"'))
    done = nri_rdma("config", "check", config)
    assert done.returncode == 1
    assert [line.split(". Next")[0] for line in done.stderr.splitlines()] == [
        f"nri-rdma: SETTING: log_level = 'loud' cannot be used, {config}:1",
        f"nri-rdma: SETTING: unknown key 'alow', {config}:23 rules[1]",
        f"nri-rdma: SETTING: 'both' is not allowed, {config}:25 pools.tin.modes[0]",
    ]


def test_alone_it_shows_its_commands() -> None:
    done = nri_rdma("config")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"show", "check", "schema"} <= set(done.stdout.split())


def test_a_file_that_is_not_there_ends_with_two(tmp_path: Path) -> None:
    assert_one_error(nri_rdma("config", "check", tmp_path / "none"), "SETTING", 2)


def test_schema_prints_the_checked_in_one() -> None:
    for file, words in (("config", ["schema"]), ("request", ["schema", "--request"])):
        checked_in = (PROJECT / f"api/{file}.schema.json").read_text()
        assert nri_rdma("config", *words).stdout == checked_in, (
            f"run `make generate`, which writes api/{file}.schema.json anew"
        )


def test_explain_decides_with_the_files_pools_and_rules(config: Path, eight: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(
        "kind: Pod\n"
        "metadata: {name: a, namespace: ml, labels: {team: b}, annotations: {rdma.noderesource.dev: rails}}\n"
        "spec: {runtimeClassName: nvidia, containers: [{name: a}]}\n"
    )
    (tmp_path / "cgroup.controllers").write_text("cpu rdma\n")
    place = ("--config", config, "--sysfs-root", eight, "--state-dir", tmp_path, "--cgroup-root", tmp_path)
    done = nri_rdma("explain", manifest, *place, columns=160)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for device, why in (
        ("mlx5_0", "no     in no pool"),
        ("mlx5_1", "GIVEN  lowest index of 2 free"),
        ("mlx5_2", "no     selected by the pools rails and gold, so that none of them has it"),
        ("mlx5_4", "no     in pool gold"),
    ):
        (line,) = [line for line in lines if line.strip().startswith(device) and why.split()[0] in line]
        assert line.endswith(why), line
    manifest.write_text(manifest.read_text().replace("nvidia", "kata-qemu"))
    done = nri_rdma("explain", manifest, *place)
    assert done.returncode == 1
    assert "nri-rdma: POLICY-HANDLER: containers of runtime handler kata-qemu have a kernel of their own" in done.stdout
    config.write_text(f"sandboxed_handlers = []\n{config.read_text()}")
    done = nri_rdma("explain", manifest, *place)
    assert done.returncode == 1
    assert f"nri-rdma: POLICY-DENIED: rule no sandboxes ({config}:15) refuses pool rails" in done.stdout
