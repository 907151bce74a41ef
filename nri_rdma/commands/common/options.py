"""Options that several commands share: a flag for each setting, --config, --snapshot and --output."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeAlias  # Any: click hands commands what their options say

import click

from nri_rdma.commands.common.sent_config import sent_config
from nri_rdma.commands.common.unit_environment import daemon_environment
from nri_rdma.config.settings import ENVIRONMENT_PREFIX, Document, Loaded, Settings, load, load_some
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.model.request import ANNOTATION_PREFIX, ANNOTATION_PREFIX_HINT
from nri_rdma.text.refusals import bounded

Command: TypeAlias = Callable[..., Any]

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people, or a JSON document for programs.",
)


def _prefix(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not ANNOTATION_PREFIX.fullmatch(value):
        what = f"--annotation-prefix {bounded(repr(value))} cannot be used"
        raise SettingError(ErrorCode.SETTING, what, hint=f"write {ANNOTATION_PREFIX_HINT}")
    return value


annotation_prefix_option = click.option(
    "--annotation-prefix",
    default=Settings().annotation_prefix,
    show_default=True,
    envvar="NRI_RDMA_ANNOTATION_PREFIX",
    metavar="TEXT",
    callback=_prefix,
    help="Prefix of our annotations; its part before a slash is the name of our DRA driver.",
)

snapshot_option = click.option(
    "--snapshot",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Use the node that `nri-rdma snapshot` saved in FILE instead of this machine.",
)


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Add --config and a flag for each named setting; without names, for all settings. The command gets the resulting
    Settings as the argument `settings`.

    The configuration file is the file of --config; otherwise the file that the runtime sends to a daemon that it
    starts; otherwise the default file.
    """
    return _options(names, "settings", lambda loaded: loaded.settings)


def asking_options(*names: str, problem: str = "") -> Callable[[Command], Command]:
    """Add --config and a flag for each named setting, for commands that ask the daemon or read hardware. The command
    also runs if the configuration file is invalid, because users look for such errors with it.

    If `problem` is empty, a warning about the invalid file is printed. Otherwise `problem` is the name of an argument
    of the command, which gets the SettingError; None if the file is valid.
    """
    return _options(names, "settings", lambda loaded: loaded.settings, is_asking=True, problem=problem)


def loaded_options(
    *, is_start: Callable[[Mapping[str, Any]], bool] = lambda _arguments: False
) -> Callable[[Command], Command]:
    """Add --config and a flag for every setting. The command gets the settings, and where each comes from, as the
    argument `loaded`.

    `is_start` returns, from the command's arguments, whether the command starts a daemon. If so, the file that the
    runtime sends to a plugin of its own is not read, and settings that cannot be read are skipped
    (nri_rdma.config.start).
    """
    return _options((), "loaded", lambda loaded: loaded, is_start=is_start)


def setting_flags(*names: str) -> Callable[[Command], Command]:
    """Add --config and a flag for each named setting. The command gets the given values as they are, not yet parsed."""
    flags: list[Callable[[Command], Command]] = [*(_flag(it) for it in fields(Settings) if it.name in names), _CONFIG]

    def decorate(command: Command) -> Command:
        decorated = command
        for flag in reversed(flags):
            decorated = flag(decorated)
        return decorated

    return decorate


def _options(
    names: tuple[str, ...],
    argument: str,
    chosen_of: Callable[[Loaded], object],
    *,
    is_asking: bool = False,
    problem: str = "",
    is_start: Callable[[Mapping[str, Any]], bool] = lambda _arguments: False,
) -> Callable[[Command], Command]:
    settable = [item for item in fields(Settings) if not item.metadata.get("table")]
    chosen = [item for item in settable if not names or item.name in names]
    flags: list[Callable[[Command], Command]] = [*map(_flag, chosen), _CONFIG]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_settings(config: Path | None, **arguments: Any) -> Any:
            given = {item.name: arguments.pop(item.name) for item in chosen}
            if is_start(arguments):
                from nri_rdma.config.start import load_to_start

                return command(**{argument: chosen_of(load_to_start(given, os.environ, config))}, **arguments)
            document, environment = Document.read(config or sent_config()), daemon_environment()
            try:
                loaded = load(given, environment, document)
            except SettingError as error:
                if not is_asking:
                    raise
                load(given, environment, Document(name="no file"))  # raises if it is a flag or variable that is wrong
                arguments[argument] = load_some(names, given, environment, document)
                if problem:
                    return command(**{problem: error}, **arguments)
                click.echo(f"warning: {error} Until then this command ignores the file.", err=True)
                return command(**arguments)
            arguments[argument] = chosen_of(loaded)
            return command(**{problem: None}, **arguments) if problem else command(**arguments)

        decorated: Command = with_settings
        for flag in reversed(flags):
            decorated = flag(decorated)
        return decorated

    return decorate


_CONFIG = click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Configuration file (TOML)."
)


def _flag(item: Field[Any]) -> Callable[[Command], Command]:
    name = "--" + item.name.replace("_", "-")
    text = f"{item.metadata['help']} [{ENVIRONMENT_PREFIX}{item.name.upper()}]"
    if isinstance(item.default, bool):
        return click.option(f"{name}/--no-{name.removeprefix('--')}", item.name, default=None, help=text)
    return click.option(name, item.name, default=None, metavar=item.metadata["metavar"], help=text)
