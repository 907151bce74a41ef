"""Settings from their four sources: which one counts, where it is from, and what is said of one that cannot be used."""

import os
from dataclasses import fields
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from nri_rdma.config import settings as config
from nri_rdma.config.schema import setting_text
from nri_rdma.config.settings import Document, Settings, load, load_settings, misnamed_variables
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.model.request import Mode


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's configuration file."""
    path = tmp_path / "config.toml"
    path.write_text('log_level = "error"\nlog_format = "json"\n')
    monkeypatch.setattr(config, "DEFAULT_CONFIG_FILE", path)
    return path


def test_what_the_runtime_sends_is_in_the_place_of_the_file(file: Path) -> None:
    settings = load_settings({}, {}, sent='log_level = "debug"\n')
    assert (settings.log_level, settings.log_format) == ("debug", "text")


@pytest.mark.parametrize("sent", ["", " \n\t"])
def test_nothing_sent_means_the_file(file: Path, sent: str) -> None:
    assert load_settings({}, {}, sent=sent).log_level == "error"


def test_the_environment_counts_before_what_is_sent() -> None:
    assert load_settings({}, {"NRI_RDMA_LOG_LEVEL": "warning"}, sent='log_level = "debug"').log_level == "warning"


@pytest.mark.parametrize("sent", ["log_level =", "log_levl = 'info'", "log_level = 'loud'"])
def test_a_text_that_cannot_be_used_names_key_and_next_step(sent: str) -> None:
    with pytest.raises(SettingError, match=r"(?s)the configuration that the runtime sent|log_level = 'loud'.*Next: "):
        load_settings({}, {}, sent=sent)


@pytest.mark.parametrize("name", ["foo,bar", "", "a b", "ä"])
def test_a_name_that_no_runtime_would_register_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"plugin-name is letters, digits and _\.\+-"):
        load_settings({"plugin_name": name}, {})


POOLS = """\
log_level = "debug"

[pools.rails]
modes = ["exclusive"]

[[rules]]
name = "training"
namespaces = ["train-*"]
[[rules]]
pools = ["rails"]
"""
SHARES = '[pools.hcas]\nmodes = ["shared"]\ndoor = "resource"\nresource = "rdma/hca"\nshares = 4\n'


def refusal(text: str, **environment: str) -> SettingError:
    with pytest.raises(SettingError) as caught:
        load({}, environment, Document(name="FILE", text=text))
    assert caught.value.code is ErrorCode.SETTING
    assert caught.value.hint
    return caught.value


def test_a_flag_comes_before_the_environment_that_before_the_file_and_that_before_the_default() -> None:
    document = Document(name="FILE", text='log_level = "debug"\nplugin_name = "a"\nlog_format = "json"')
    environment = {"NRI_RDMA_LOG_LEVEL": "error", "NRI_RDMA_PLUGIN_NAME": "b"}
    loaded = load({"log_level": "warning", "plugin_name": None}, environment, document)
    settings = loaded.settings
    assert (settings.log_level, settings.plugin_name, settings.log_format) == ("warning", "b", "json")
    assert settings.annotation_prefix == "rdma.noderesource.dev"
    assert {name: loaded.origins[name] for name in ("log_level", "plugin_name", "log_format", "annotation_prefix")} == {
        "log_level": "--log-level",
        "plugin_name": "NRI_RDMA_PLUGIN_NAME",
        "log_format": "FILE:3",
        "annotation_prefix": "default",
    }


@pytest.mark.parametrize(
    "written", ['"10.0.0.1,fd00::1"', '"10.0.0.1, fd00::1"', '["10.0.0.1", "fd00::1"]', '["10.0.0.1","fd00:0::1"]']
)
def test_a_node_has_several_addresses(written: str) -> None:
    settings = load({}, {}, Document(name="FILE", text=f"node_ip = {written}")).settings
    assert settings.node_ip == (ip_address("10.0.0.1"), ip_address("fd00::1"))
    assert setting_text(settings.node_ip) == "10.0.0.1,fd00::1"


@pytest.mark.parametrize("written", ["10.0.0.1", "10.0.0.1:6443", "fd00::1", "[fd00::1]", "[fd00::1]:6443"])
def test_the_api_servers_address_is_written_with_a_port_or_without(written: str) -> None:
    settings = load({"api_server": written}, {}, Document(name="FILE")).settings
    assert str(settings.api_server) == ("fd00::1" if "f" in written else "10.0.0.1")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('node_ip = "node-1"', "node_ip = 'node-1' cannot be used"),
        ('guard_resource = "guard"', "guard_resource = 'guard' cannot be used"),
        ('guard_resource = "node.kubernetes.io/guard"', "guard_resource = 'node.kubernetes.io/guard' cannot be used"),
        (f'guard_resource = "rdma/hca"\n{SHARES}', "rdma/hca is also the resource of FILE:2"),
        ('node_ip = "0.0.0.0"', "node_ip = '0.0.0.0' cannot be used"),
        ('node_ip = "10.0.0.1,"', "node_ip = '10.0.0.1,' cannot be used"),
        ("node_ip = 10", "node_ip = 10 cannot be used"),
        ("node_ip = [10]", "node_ip = [10] cannot be used"),
        ('api_server = "api.example.com:6443"', "api_server = 'api.example.com:6443' cannot be used"),
        ('api_server = "10.0.0.1:https"', "api_server = '10.0.0.1:https' cannot be used"),
        ('api_server = "https://10.0.0.1"', "api_server = 'https://10.0.0.1' cannot be used"),
        ('service_range = "10.96.0.1"', "service_range = '10.96.0.1' cannot be used"),
        ('service_range = "10.96.0.1/12"', "service_range = '10.96.0.1/12' cannot be used"),
        ("service_range = [7]", "service_range = [7] cannot be used"),
        ('api_server = "[fd00::1]6443"', "api_server = '[fd00::1]6443' cannot be used"),
    ],
)
def test_what_is_no_address_is_refused(text: str, what: str) -> None:
    assert what in refusal(text).what


@pytest.mark.parametrize("written", ["127.0.0.1:9178", "[::]:9178", ""])
def test_metrics_are_served_where_the_setting_says_and_by_default_nowhere(written: str) -> None:
    assert load({}, {}, Document(name="FILE")).settings.metrics_address is None
    settings = load({}, {}, Document(name="FILE", text=f'metrics_address = "{written}"')).settings
    assert setting_text(settings.metrics_address) == written
    assert load({}, {"NRI_RDMA_METRICS_ADDRESS": written}, Document(name="FILE")).settings == settings


@pytest.mark.parametrize(
    "written", ['"9178"', "9178", '":9178"', '"127.0.0.1"', '"node-1:9178"', '"127.0.0.1:0"', "true"]
)
def test_what_is_no_address_to_listen_at_is_refused_with_its_line_and_the_next_step(written: str) -> None:
    error = refusal(f"\nmetrics_address = {written}")
    assert error.what == f"metrics_address = {written.replace(chr(34), chr(39)).replace('true', 'True')} cannot be used"
    assert error.where == "FILE:2"
    assert "127.0.0.1:9178" in error.hint or error.hint == "metrics-address is a text"


def test_the_range_of_services_is_one_network_or_several() -> None:
    settings = load({"service_range": "10.96.0.0/12,fd00:96::/112"}, {}, Document(name="FILE")).settings
    expected = (ip_network("10.96.0.0/12"), ip_network("fd00:96::/112"))
    assert settings.lifelines({}).service_range == settings.service_range == expected


def test_a_cluster_tells_its_pods_the_api_server_and_a_name_there_is_passed_over() -> None:
    told, named = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, {"KUBERNETES_SERVICE_HOST": "api.example.com"}
    settings = load({}, {}, Document(name="FILE")).settings
    assert settings.lifelines(told).api_server == ip_address("10.96.0.1")
    assert settings.lifelines(named).api_server is settings.lifelines({}).api_server is None
    mine = load({"api_server": "10.0.0.1:6443"}, {}, Document(name="FILE")).settings
    assert mine.lifelines(told).api_server == ip_address("10.0.0.1")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('["kata*", "runsc"]', ("kata*", "runsc")),
        ('"kata*, runsc"', ("kata*", "runsc")),
        ('"kata"', ("kata",)),
        ("[]", ()),
        ('""', ()),
    ],
)
def test_sandboxed_handlers_are_a_list_or_a_text_with_commas(written: str, read: tuple[str, ...]) -> None:
    assert load_settings({}, {}, sent=f"sandboxed_handlers = {written}\n").sandboxed_handlers == read


@pytest.mark.parametrize("written", ['"kata, "', '["a b"]', "[1]", "true", "false", '[""]', "0", "1"])
def test_what_is_no_runtime_handler_is_refused(written: str) -> None:
    with pytest.raises(SettingError, match="sandboxed-handlers is a list of runtime handlers"):
        load_settings({}, {}, sent=f"sandboxed_handlers = {written}\n")


def test_containerds_socket_may_be_none() -> None:
    assert load({}, {}, Document(name="FILE")).settings.containerd_socket == Path("/run/containerd/containerd.sock")
    document = Document(name="FILE", text='containerd_socket = ""')
    assert load({}, {}, document).settings.containerd_socket is None
    other = load({"containerd_socket": "/run/k3s/containerd/containerd.sock"}, {}, document).settings
    assert other.containerd_socket == Path("/run/k3s/containerd/containerd.sock")


def test_every_setting_has_an_origin() -> None:
    assert set(load({}, {}, Document(name="FILE")).origins) == {item.name for item in fields(Settings)}


def test_pools_and_rules_say_where_they_stand() -> None:
    loaded = load({}, {}, Document(name="FILE", text=POOLS))
    (pool,) = loaded.settings.pools
    assert (pool.name, pool.modes, pool.where) == ("rails", (Mode.EXCLUSIVE,), "FILE:3")
    assert [(rule.name, rule.where) for rule in loaded.settings.rules] == [("training", "FILE:6"), ("2", "FILE:9")]
    assert (loaded.origins["pools"], loaded.origins["rules"]) == ("FILE:3", "FILE:6")


def test_pools_are_not_for_the_environment() -> None:
    assert load({}, {"NRI_RDMA_POOLS": "rails"}, Document(name="FILE")).settings.pools == ()


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('\nannotation_prefix = "example.com/"', "FILE:2", "annotation_prefix = 'example.com/' cannot be used"),
        ('\nannotation_prefix = "Example.com"', "FILE:2", "annotation_prefix = 'Example.com' cannot be used"),
        ('\nannotation_prefix = ""', "FILE:2", "annotation_prefix = '' cannot be used"),
        (POOLS + 'mode = ["shared"]', "FILE:11 rules[1]", "unknown key 'mode'"),
        (POOLS + 'modes = ["shared"]', "FILE:11 rules[1].modes[0]", "none of its pools serves mode shared"),
        ('[pools.a]\nmodes = [\n"both"]', "FILE:2 pools.a.modes[0]", "'both' is not allowed"),
        (f"allow_default_pool = true\n{POOLS}", "FILE:1", "allow_default_pool is for a configuration without pools"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(text: str, where: str, what: str) -> None:
    error = refusal(text)
    assert error.where == where
    assert what in error.what


def test_a_setting_below_a_table_is_told_where_it_belongs() -> None:
    error = refusal(f'{POOLS}memlock = "keep"')
    assert error.what == "unknown key 'memlock'"
    assert error.hint.startswith("memlock is a setting: write it above the first [table]; ")


@pytest.mark.parametrize("prefix", ["a.b", "rdma.example.com", "example.com/rdma"])
def test_a_prefix_is_a_dns_name_or_a_key(prefix: str) -> None:
    assert load({}, {"NRI_RDMA_ANNOTATION_PREFIX": prefix}, Document(name="FILE")).settings.annotation_prefix == prefix


def test_what_is_wrong_in_the_environment_is_named_with_the_variable() -> None:
    error = refusal("", NRI_RDMA_LOG_LEVEL="loud")
    assert (error.where, error.what) == ("NRI_RDMA_LOG_LEVEL", "log_level = 'loud' cannot be used")


def test_an_unknown_setting_names_the_nearest_one() -> None:
    assert refusal('loglevel = "info"').hint == "write log_level"


def test_rules_without_pools_are_about_the_default_one() -> None:
    settings = load({}, {}, Document(name="FILE", text='[[rules]]\npools = ["default"]\nmodes = ["shared"]')).settings
    assert settings.rules[0].pools == ("default",)
    assert "there is no pool 'rails'" in refusal('[[rules]]\npools = ["rails"]').what


def test_what_the_runtime_sends_is_in_the_place_of_a_file_that_was_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('log_level = "error"')
    assert load_settings({}, {}, path, sent='log_format = "json"').log_level == "info"
    assert load_settings({}, {}, path, sent=" \n").log_level == "error"
    with pytest.raises(SettingError, match="the configuration that the runtime sent:2"):
        load_settings({}, {}, path, sent="\npools.a = 1")


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings({}, {}, tmp_path / "none.toml")
    assert caught.value.where == str(tmp_path / "none.toml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"log_level = \xff")
    with pytest.raises(SettingError):
        load_settings({}, {}, path)


def test_a_file_may_be_a_mebibyte_long_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    line = 'log_level = "debug"\n'
    path.write_text(line + "#" * ((1 << 20) - len(line)))
    assert load_settings({}, {}, path).log_level == "debug"
    path.write_text(path.read_text() + "#")
    with pytest.raises(SettingError, match="it is longer than 1048576 bytes"):
        load_settings({}, {}, path)


def test_a_fifo_in_the_files_place_is_refused_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    with pytest.raises(SettingError, match="it is a FIFO"):
        load_settings({}, {}, path)


def test_variables_that_are_no_settings_are_named_with_the_one_that_was_meant() -> None:
    environment = {
        "NRI_RDMA_METRICS_ADRESS": "x",
        "NRI_RDMA_LOG_FORAMT": "json",
        "NRI_RDMA_LOG_LEVEL": "info",
        "NRI_RDMA_CONFIG": "/etc/other.toml",
        "NRI_RDMA_SERVICE_HOST": "10.0.0.1",  # Kubernetes' own, of a Service nri-rdma
        "NRI_RDMA_METRICS_PORT_9178_TCP_ADDR": "10.0.0.1",
        "NRI_RDMA_QQQQ": "nothing is near",
        "OTHER_METRICS_ADRESS": "x",
    }
    assert dict(misnamed_variables(environment)) == {
        "NRI_RDMA_METRICS_ADRESS": "NRI_RDMA_METRICS_ADDRESS",
        "NRI_RDMA_LOG_FORAMT": "NRI_RDMA_LOG_FORMAT",
        "NRI_RDMA_CONFIG": "the flag --config",
    }
