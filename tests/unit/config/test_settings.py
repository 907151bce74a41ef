"""Where settings come from."""

from pathlib import Path

import pytest

from nri_rdma.config import settings as config
from nri_rdma.config.settings import load_settings
from nri_rdma.errors import SettingError


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
