"""The handlers of a connection, with a count of what they answer."""

from __future__ import annotations

from time import perf_counter_ns

from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.observe.durations import CallOutcome, Durations, outcome_of
from nri_rdma.ttrpc.wire import Request

UNKNOWN = "unknown"
"""The name of all calls that we do not serve: the runtime's own words are no labels."""
_DONE, _NOTHING_ASKED = CallOutcome.DONE, CallOutcome.NOTHING_ASKED


class CountedPlugin:
    """Answers as the plugin does, and notes each call by its event and outcome."""

    def __init__(self, plugin: Plugin, events: Durations) -> None:
        self._plugin = plugin
        self._note = events.note

    def answer(self, request: Request) -> bytes:
        """Return the payload of the answer. Raise what the plugin raises."""
        plugin, begin = self._plugin, perf_counter_ns()
        try:
            answer = plugin.answer(request)
        except BaseException as error:
            self._note(((plugin.event or UNKNOWN, outcome_of(error)), perf_counter_ns() - begin))
            raise
        self._note(((plugin.event, _DONE if plugin.concerned else _NOTHING_ASKED), perf_counter_ns() - begin))
        return answer
