"""Counts the calls that the plugin of one connection answers, for the metrics."""

from __future__ import annotations

from collections import Counter

from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.observe.durations import CallOutcome, Labels, outcome_of
from nri_rdma.ttrpc.wire import Request

UNKNOWN = "unknown"
"""The label for all methods that the plugin does not serve. The name in the runtime's call is not used, because it
could be any text."""
_DONE, _NOTHING_ASKED = CallOutcome.DONE, CallOutcome.NOTHING_ASKED


class CountedPlugin:
    """A wrapper around a plugin that counts each call by event and outcome."""

    def __init__(self, plugin: Plugin, counts: Counter[Labels]) -> None:
        self._plugin = plugin
        self._counts = counts

    def answer(self, request: Request) -> bytes:
        """Return the payload of the wrapped plugin's answer. Raises whatever the wrapped plugin raises."""
        plugin = self._plugin
        try:
            answer = plugin.answer(request)
        except BaseException as error:
            self._counts[plugin.event or UNKNOWN, outcome_of(error)] += 1
            raise
        self._counts[plugin.event, _DONE if plugin.concerned else _NOTHING_ASKED] += 1
        return answer
