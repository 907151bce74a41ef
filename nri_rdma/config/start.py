"""Loads the settings of a starting daemon, even if some of them cannot be read (docs/adr/0051).

Law: if a setting that decides who gets which device cannot be read, pods that ask for devices are refused. If the
setting belongs to one pool, only the pods that ask for that pool are refused. Other unreadable settings have their
defaults. Each problem is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from nri_rdma.config import settings as configuration
from nri_rdma.config.settings import Document, Loaded, Memlock, Problem, Reading, reason_of
from nri_rdma.errors import SettingError
from nri_rdma.model.trouble import Part, Trouble

BESIDE_THE_JOB = frozenset({
    "plugin_name", "plugin_index", "allow_default_pool", "memlock", "attach", "sandbox_wait", "barrier_wait", "nice",
    "kubelet_wait", "control_socket", "metrics_address", "tracing", "log_level", "log_format", "log_file",
    "guard_resource", "name_holders",
})  # fmt: skip
"""The settings that do not decide who gets which device: if one is unreadable, pods are served with its default.
`allow_default_pool` is among them because its default only refuses more pods. So does the default of `guard_resource`:
pods that ask for that resource are not scheduled."""
_INSTEAD: Mapping[str, tuple[object, str]] = {"memlock": (Memlock(), "keep counts")}
"""By setting: the value that replaces an unreadable one, and the words for it in the error's hint. A setting is listed
here if its default would permit more than the unreadable value may have meant."""


def load_to_start(
    flags: Mapping[str, object], environment: Mapping[str, str], config_file: Path | None = None, *, sent: str = ""
) -> Loaded:
    """Return the settings from all sources, as far as they can be read; wrong settings are reported in `problems` of
    the result and never raise an error. `sent` is the configuration text that the runtime sent, which replaces the
    file; "" if it sent none."""
    path = config_file or configuration.DEFAULT_CONFIG_FILE
    unread: tuple[Problem, ...] = ()
    try:
        document = Document.sent_or_read(sent, config_file)
    except SettingError as error:
        document, unread = Document(name=str(path), file=path), (Problem(error=error),)
    reading = Reading(flags, environment, document)
    problems: list[SettingError] = []
    closed = ""
    for problem in chain(unread, reading.problems()):
        instead, words = _INSTEAD.get(problem.name, (None, "its default counts"))
        reading.values.pop(problem.name, None)
        if instead is not None:
            reading.values[problem.name] = instead
        closes = not problem.until and problem.name not in BESIDE_THE_JOB
        if closes and not closed:
            closed = reason_of(problem.error)
        until = "pods that ask for devices are refused" if closes else problem.until or words
        hint = problem.error.hint
        problem.error.hint = f"{hint}; until then {until}" if hint else f"until then {until}"
        problems.append(problem.error)
    return reading.loaded(tuple(problems), closed)


def start_troubles(loaded: Loaded, log_error: str) -> tuple[Trouble, ...]:
    """Return the problems of the settings in the form in which the daemon reports its own problems (Trouble).
    `log_error` says why the configured log cannot be used; "" if it can."""
    of_log = (Trouble(part=Part.LOG, why=log_error),) if log_error else ()
    return (*(Trouble(part=Part.SETTINGS, why=str(error)) for error in loaded.problems), *of_log)
