"""What a daemon tells of its own work: spans, kept and exported, and counts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any  # Any: a document of JSON

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.lacking import Lacking
from nri_rdma.daemon.past import Past
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.errors import SettingError
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.observe.durations import Tally
from nri_rdma.observe.export import SpanExportThread, make_exporter
from nri_rdma.observe.spans import Recorder

KEPT_SPANS = 4096
"""About three hundred pods of one device each."""


class Telemetry:
    """The recorder of spans, the tally of metrics, and the threads that bring spans elsewhere, until `close`."""

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
        """Take up what the daemon before did and refused, and keep that of this one. Before anything happens."""
        self._past = Past(self._state_dir, self.spans, refused)
        self._past.begin()

    def traces(self) -> Mapping[str, Any] | None:
        """Return what became of the spans that are sent to a collector, as ExportCounts has it; None: none are sent."""
        return asdict(self._exporter.counts()) if self._exporter else None

    def close(self) -> None:
        """Keep and send the rest."""
        if self._past is not None:
            self._past.close()
        if self._exporter is not None:
            self._exporter.close()


def _exporter(lacking: Lacking) -> SpanExportThread | None:
    """Return the exporter that the environment asks for, None where there is none."""
    try:
        return make_exporter(os.environ)
    except SettingError as error:
        lacking.add((Trouble(part=Part.TRACES, why=str(error)),))
        return None
