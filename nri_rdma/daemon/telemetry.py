"""Creates the daemon's telemetry: the recorder of spans, their export and storage, and the counts for metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any  # Any: a document of JSON

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.past import Past
from nri_rdma.daemon.shortcomings import Lacking
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.errors import SettingError
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.observe.durations import Tally
from nri_rdma.observe.export import SpanExportThread, make_exporter
from nri_rdma.observe.spans import Recorder

KEPT_SPANS = 4096
"""Number of spans in memory: about three hundred pods with one device each."""


class Telemetry:
    """The recorder of spans, the counts for metrics, and the threads that export and store spans, until `close`."""

    def __init__(self, settings: Settings, lacking: Lacking) -> None:
        self._exporter = _exporter(lacking) if settings.tracing else None
        self._state_dir = settings.state_dir
        self._past: Past | None = None
        self.tally = Tally() if settings.metrics_address is not None else None
        self.spans = Recorder(
            capacity=KEPT_SPANS if settings.tracing else 0,
            sink=self._exporter.put if self._exporter is not None else None,
            counter=self.tally.span_ended if self.tally is not None else None,
        )

    def begin(self, refused: RefusedLately) -> None:
        """Load the spans and refusals of the daemon before, and start to store those of this daemon. Call it before the
        first span is recorded."""
        self._past = Past(self._state_dir, self.spans, refused)
        self._past.begin()

    def traces(self) -> Mapping[str, Any] | None:
        """Return the fields of ExportCounts, such as the number of spans that were sent to a collector; None if spans
        are not exported."""
        return asdict(self._exporter.counts()) if self._exporter else None

    def close(self) -> None:
        """Store and export the remaining spans."""
        if self._past is not None:
            self._past.close()
        if self._exporter is not None:
            self._exporter.close()


def _exporter(lacking: Lacking) -> SpanExportThread | None:
    """Return the span exporter that the environment variables configure; None if they configure none."""
    try:
        return make_exporter(os.environ)
    except SettingError as error:
        lacking.add((Trouble(part=Part.TRACES, why=str(error)),))
        return None
