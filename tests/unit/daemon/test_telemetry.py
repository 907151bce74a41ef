"""A daemon has of its telemetry what its settings and its environment ask for."""

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.shortcomings import Lacking
from nri_rdma.daemon.telemetry import Telemetry
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.model.listen_address import ListenAddress


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a daemon that traces and has no metrics."""
    return Settings(state_dir=tmp_path)


@pytest.mark.parametrize("tracing", [True, False])
def test_spans_are_kept_for_the_daemon_after_it_unless_tracing_is_off(settings: Settings, tracing: bool) -> None:
    for _ in range(2):
        told = Telemetry(replace(settings, tracing=tracing), Lacking(()))
        assert (told.traces(), told.tally) == (None, None)
        told.begin(RefusedLately())
        with told.spans.span("one"):
            pass
        told.close()
    assert [span.name for span in told.spans.recent()] == ["one", "one"] * tracing


def test_a_wrong_variable_is_a_trouble_and_spans_are_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "jaeger")
    lacking = Lacking(())
    told = Telemetry(settings, lacking)
    assert "jaeger" in lacking.told(settings_are_others=False)[0]["why"]
    assert told.spans.capacity > 0
    told.close()


def test_spans_are_counted_where_metrics_are_served(settings: Settings) -> None:
    told = Telemetry(replace(settings, metrics_address=ListenAddress(ip_address("127.0.0.1"), 1)), Lacking(()))
    assert told.tally is not None
    told.close()
