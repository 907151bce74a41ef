"""`nri-rdma config`: shows the settings in force, checks a configuration file, and prints its schema."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: a JSON document

import click

from nri_rdma.commands.common.options import loaded_options, output_option, snapshot_option
from nri_rdma.commands.common.screen import Screen, TextTable, print_json, printable
from nri_rdma.config.settings import Document, Loaded, Settings, load, misnamed_variables
from nri_rdma.errors import InventoryError, SettingError

if TYPE_CHECKING:
    from nri_rdma.decide.policy import Offer, Policy
    from nri_rdma.model.adoption import Adoption
    from nri_rdma.model.device import Node
    from nri_rdma.model.pool import Pool, Rule
    from nri_rdma.model.request import RdmaLimits

EXIT_REFUSED = 1


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> None:
    """Show, check and convert the configuration.

    \b
    Example:
      nri-rdma config show
      nri-rdma config check /etc/nri-rdma/config.toml
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@config.command()
@loaded_options()
@snapshot_option
@output_option
def show(loaded: Loaded, snapshot: Path | None, output: str) -> None:
    """Show each setting with its value and origin, and the pools, rules and adopt settings.

    These are the settings of a daemon started now with these flags and this environment. If the runtime starts the
    daemon, the file that the runtime sends to it is read. The devices of pools are those of this machine, in use or
    not. Needs neither root nor a daemon.

    \b
    Example:
      nri-rdma config show
      nri-rdma config show --config ./config.toml --snapshot node.json -o json
    """
    from nri_rdma.decide.policy import configured_policy, offer

    settings = loaded.settings
    policy = configured_policy(settings)
    node, sentence = _node(settings, snapshot)
    offered = offer(policy, node) if node is not None else None
    if output == "json":
        print_json(_document(loaded, policy, node, offered))
        return
    screen = Screen()
    screen.table(_settings_table(loaded))
    for pool in policy.pools.values():
        screen.line()
        screen.line(f"Pool {pool.name} ({pool.where or 'default'})", bold=True)
        screen.facts(tuple(_pool_facts(pool, node, offered)), indent=2)
    for rule in policy.rules:
        screen.line()
        screen.line(f"Rule {rule.name} ({rule.where})", bold=True)
        screen.facts(tuple(_rule_facts(rule)), indent=2)
    screen.line()
    screen.line(f"Devices from others ({loaded.origins['adopt']})", bold=True)
    screen.facts(tuple(_adopt_facts(loaded.settings.adopt)), indent=2)
    screen.line()
    screen.line(sentence if policy.rules else f"Without rules every pod may ask every pool. {sentence}".strip())


@config.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Report the errors in a configuration file, with line and key.

    All wrong settings are reported, and the first error of each pool, each rule and adopt. Ends with 1 if a daemon
    would refuse the file. Needs neither root nor a daemon.

    \b
    Example:
      nri-rdma config check /etc/nri-rdma/config.toml
    """
    from nri_rdma.config.problems import problems_of

    try:
        document = Document.read(file)
        problems = problems_of(document)
    except SettingError as error:
        problems = (error,)
    for problem in problems:
        click.echo(str(problem), err=True)
    if problems:
        context.exit(EXIT_REFUSED)
    for written, near in misnamed_variables(os.environ):
        click.echo(f"warning: nothing reads the variable {written}: no setting has it. Next: write {near}.", err=True)
    settings = load({}, {}, document).settings
    Screen().line(f"{file} can be used: {_counted(settings.pools, 'pool')}, {_counted(settings.rules, 'rule')}.")


@config.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def import_(context: click.Context, file: Path) -> None:
    """Convert a configuration of k8s-rdma-shared-dev-plugin to one of nri-rdma.

    FILE is its JSON (the ConfigMap's config.json). The result is printed, and a line on stderr says for each key what
    became of it. Ends with 1 if a key cannot be used. Needs neither root nor a daemon.

    \b
    Example:
      nri-rdma config import config.json > /etc/nri-rdma/config.toml
    """
    from nri_rdma.config.imported import imported

    try:
        found = imported(file.read_text(encoding="utf-8", errors="replace"), str(file))
    except SettingError as error:
        click.echo(printable(str(error)), err=True)
        context.exit(EXIT_REFUSED)
    for note in found.notes:
        click.echo(printable(f"{note.path}: {note.fate}: {note.words}"), err=True)
    click.echo(found.toml, nl=False)


@config.command()
@click.option("--request", is_flag=True, help="Print the schema of requests (of pods, CDI specs and claims) instead.")
def schema(*, request: bool) -> None:
    """Print the JSON Schema of the configuration, for editors.

    \b
    Examples:
      nri-rdma config schema > config.schema.json
      nri-rdma config schema --request > request.schema.json
    """
    from nri_rdma.config.schema import config_schema
    from nri_rdma.text.request_schema import request_schema

    print_json(request_schema() if request else config_schema())


def _counted(items: tuple[object, ...], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _node(settings: Settings, snapshot: Path | None) -> tuple[Node | None, str]:
    """Return the node, and a sentence to print about it: from which snapshot it is, or why it could not be read ("":
    neither). The node is None if this machine's hardware cannot be read."""
    from nri_rdma.commands.common.local_node import read_node

    try:
        return read_node(settings, snapshot)[0], "" if snapshot is None else f"Devices are those of {snapshot}."
    except InventoryError as error:
        return None, f"Devices are not shown: {error.what} ({error.where})."


# For people


def _settings_table(loaded: Loaded) -> TextTable:
    from nri_rdma.config.schema import setting_text

    return TextTable(
        headings=("SETTING", "VALUE", "FROM"),
        rows=tuple(
            (item.name, setting_text(getattr(loaded.settings, item.name)) or "-", loaded.origins[item.name])
            for item in fields(Settings)
            if not item.metadata.get("table")
        ),
    )


def _pool_facts(pool: Pool, node: Node | None, offered: Offer | None) -> Iterator[tuple[str, str]]:
    yield "modes", ", ".join(pool.modes)
    yield "door", pool.door
    if pool.resource:
        has = f"{pool.shares} shares, each gives {pool.gives}" if pool.shares else "one for each device"
        yield "resource", f"{pool.resource}, {has}"
    for number, selector in enumerate(pool.select):
        yield ("" if number else "select"), str(selector)
    for number, selector in enumerate(pool.exclude):
        yield ("" if number else "exclude"), str(selector)
    if pool.requires_isolation:
        yield "requireIsolation", "true"
    if pool.use is not None:
        yield "use", pool.use
    if pool.prove:
        yield "prove", "true"
    if pool.userspace is not None:
        yield "userspace", pool.userspace
    if pool.roce_version is not None:
        yield "roceVersion", str(pool.roce_version)
    for number, (name, value) in enumerate(pool.env):
        yield ("" if number else "env"), f"{name}={value}"
    yield from _limits_facts(pool.limits, "limits")
    yield from _limits_facts(pool.max_limits, "maxLimits")
    if node is None or offered is None:
        return
    yield "devices", ", ".join(_device_words(device) for device in offered.by_pool[pool.name]) or "none on this node"
    contested = [device.name for device in node.devices if pool.name in offered.contested.get(device.id, ())]
    if contested:
        yield "WARNING", f"other pools select too, so that none has: {', '.join(contested)}"


def _device_words(device: Any) -> str:
    if device.uses:
        return f"{device.name} (in use)"
    return f"{device.name} (can only be shared)" if device.ties else str(device.name)


def _rule_facts(rule: Rule) -> Iterator[tuple[str, str]]:
    whom = [
        *(["namespace " + " or ".join(rule.namespaces)] if rule.namespaces else []),
        *(["runtime handler " + " or ".join(map(repr, rule.runtime_handlers))] if rule.runtime_handlers else []),
        *(f"label {key} {' or '.join(values)}" for key, values in rule.pod_labels),
    ]
    yield "for", " and ".join(whom) or "every pod"
    yield "pools", ", ".join(rule.pools) or "all"
    if not rule.allow:
        yield "allow", "false"
        return
    yield "modes", ", ".join(rule.modes) or "all of the pool"
    yield "devices", ", ".join(sorted(rule.char_kinds)) or "none"
    yield "interface", ", ".join(sorted(rule.rights)) or "nothing"
    yield from _limits_facts(rule.max_limits, "maxLimits")


def _adopt_facts(adoption: Adoption) -> Iterator[tuple[str, str]]:
    from nri_rdma.model.request import UNLIMITED

    for vendor, item in (*adoption.vendors.items(), ("others" if adoption.vendors else "all", adoption.others)):
        bytes_ = "unlimited" if item.memlock == UNLIMITED else f"{item.memlock} bytes"
        told = [("memlock", bytes_)] if item.memlock is not None else []
        words = [str(item.adopt), *(f"{key} {text}" for key, text in (*told, *_limits_facts(item.limits, "limits")))]
        yield vendor, "; ".join(words)


def _limits_facts(limits: RdmaLimits | None, word: str) -> Iterator[tuple[str, str]]:
    if limits is not None:
        told = (("hcaHandles", limits.hca_handles), ("hcaObjects", limits.hca_objects))
        yield word, ", ".join(f"{key} {number}" for key, number in told if number is not None)


# For programs


def _document(loaded: Loaded, policy: Policy, node: Node | None, offered: Offer | None) -> dict[str, Any]:
    from nri_rdma.config.schema import setting_text
    from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, adoption_document, policy_document

    document = policy_document(policy)
    if node is not None and offered is not None:
        for name, pool in document["pools"].items():
            pool["devices"] = [device.name for device in offered.by_pool[name]]
            pool["contested"] = [it.name for it in node.devices if name in offered.contested.get(it.id, ())]
    return {
        "version": DOCUMENT_VERSION,
        "settings": [
            {
                "name": item.name,
                "value": setting_text(getattr(loaded.settings, item.name)),
                "from": loaded.origins[item.name],
            }
            for item in fields(Settings)
            if not item.metadata.get("table")
        ],
        **document,
        "adopt": adoption_document(loaded.settings.adopt),
    }
