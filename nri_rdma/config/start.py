"""Loads the settings of a starting daemon, even if some of them cannot be read (docs/adr/0051).

Law: if a setting that decides who gets which device cannot be read, pods that ask for devices are refused: those of one
pool if it is that pool's setting, otherwise all. Other unreadable settings have their defaults. Each problem is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any  # Any: values before they are parsed

from nri_rdma.config.settings import (
    DEFAULT_CONFIG_FILE,
    DEFAULT_ORIGIN,
    SENT_CONFIG,
    Document,
    Loaded,
    Memlock,
    Settings,
    load,
    needless_default_pool,
    parse_table,
    read_setting,
    refusal_in,
    refuse_unknown,
    shared_resource,
)
from nri_rdma.errors import RequestError, SettingError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.pool import DEFAULT_POOL, Pool, PoolDoor, Rule
from nri_rdma.model.request import Mode
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.text.refusals import bounded, meant

BESIDE_THE_JOB = frozenset({
    "plugin_name", "plugin_index", "allow_default_pool", "memlock", "attach", "sandbox_wait", "barrier_wait", "nice",
    "kubelet_wait", "control_socket", "metrics_address", "tracing", "log_level", "log_format", "log_file",
    "guard_resource", "name_holders",
})  # fmt: skip
"""The settings that do not decide who gets which device: if one is unreadable, pods are served with its default.
`allow_default_pool` is among them because its default only refuses more. So does the default of `guard_resource`: pods
that ask for it are not scheduled."""
_INSTEAD: Mapping[str, tuple[object, str]] = {"memlock": (Memlock(), "keep counts")}
"""By setting: the value that replaces an unreadable one, and the words for it, where the default would permit more than
the unreadable value may have meant."""
_STRICT_ADOPTION = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))


def load_to_start(
    flags: Mapping[str, object], environment: Mapping[str, str], config_file: Path | None = None, *, sent: str = ""
) -> Loaded:
    """Return the settings from all sources, as far as they can be read. Never raises because of their content. `sent`
    is the configuration text that the runtime sent, which replaces the file; "" if it sent none."""
    try:
        return load(flags, environment, Document.sent_or_read(sent, config_file))
    except SettingError:
        return _Reading().loaded(flags, environment, config_file, sent)


def start_troubles(loaded: Loaded, log_error: str) -> tuple[Trouble, ...]:
    """Return the problems of the settings as troubles of the daemon. `log_error` says why the configured log cannot be
    used; "" if it can."""
    of_log = (Trouble(part=Part.LOG, why=log_error),) if log_error else ()
    return (*(Trouble(part=Part.SETTINGS, why=str(error)) for error in loaded.problems), *of_log)


class _Reading:
    """One reading of the settings that continues after errors."""

    def __init__(self) -> None:
        self._problems: list[SettingError] = []
        self._closed = ""
        self._misnamed: set[str] = set()
        """The settings whose names were probably meant by unknown names."""

    def loaded(
        self, flags: Mapping[str, object], environment: Mapping[str, str], config_file: Path | None, sent: str
    ) -> Loaded:
        document, table = self._table(config_file, sent)
        for key in table:
            self._look_at_name(key, document)
        values = self._values(flags, environment, document, table)
        adoption = self._adoption(document, table)
        pools = self._pools(document, table)
        rules = self._rules(document, table, pools)
        if pools and values.pop("allow_default_pool", False):
            self._note(needless_default_pool(document, "allow_default_pool"), closes=False)
        settings = Settings(**values, adopt=adoption, pools=pools, rules=rules)
        taken = shared_resource(settings, document, "guard_resource")
        if taken is not None:
            self._note(taken, closes=False)
            settings = replace(settings, guard_resource="")
        return Loaded(
            settings=settings,
            origins={},
            again=lambda: load(flags, environment, document.again()).settings,
            problems=tuple(self._problems),
            closed=self._closed,
        )

    def _note(self, error: SettingError, *, closes: bool, until: str = "its default counts") -> None:
        """Keep a problem, and add its effect to its hint: pods that ask for devices are refused (`closes`), or else
        `until`, a text."""
        cost = "pods that ask for devices are refused" if closes else until
        error.hint = f"{error.hint}; until then {cost}" if error.hint else f"until then {cost}"
        self._problems.append(error)
        if closes and not self._closed:
            self._closed = _reason(error)

    def _table(self, config_file: Path | None, sent: str) -> tuple[Document, Mapping[str, Any]]:
        path = config_file or DEFAULT_CONFIG_FILE
        document = Document(name=SENT_CONFIG if sent.strip() else str(path), file=path)
        try:
            document = Document.sent_or_read(sent, config_file)
            return document, parse_table(document)
        except SettingError as error:
            self._note(error, closes=True)
            return document, {}

    def _look_at_name(self, key: str, document: Document) -> None:
        """Report an unknown name of a setting. The nearest known name was probably meant, and counts as unreadable."""
        try:
            refuse_unknown(key, document)
        except SettingError as error:
            name = meant(key, (item.name for item in fields(Settings)))
            self._misnamed.add(name)
            self._note(error, closes=name not in BESIDE_THE_JOB)

    def _values(
        self,
        flags: Mapping[str, object],
        environment: Mapping[str, str],
        document: Document,
        table: Mapping[str, Any],
    ) -> dict[str, Any]:
        values: dict[str, Any] = {name: value for name, (value, _) in _INSTEAD.items() if name in self._misnamed}
        for item in fields(Settings):
            if item.metadata.get("table"):
                continue
            try:
                value, origin = read_setting(item, flags, environment, document, table)
            except SettingError as error:
                other, until = _INSTEAD.get(item.name, (None, "its default counts"))
                self._note(error, closes=item.name not in BESIDE_THE_JOB, until=until)
                if other is not None:
                    values[item.name] = other
            else:
                if origin != DEFAULT_ORIGIN:
                    values[item.name] = value
        return values

    def _adoption(self, document: Document, table: Mapping[str, Any]) -> Adoption:
        from nri_rdma.text.pools import node_of, read_adoption  # imported late, because it imports YAML

        try:
            return read_adoption(node_of(table["adopt"])) if "adopt" in table else Adoption()
        except RequestError as error:
            self._note(refusal_in(document, error), closes=False, until="mode enforce counts")
            return _STRICT_ADOPTION

    def _pools(self, document: Document, table: Mapping[str, Any]) -> tuple[Pool, ...]:
        from nri_rdma.text.pools import node_of, read_each_pool, read_pools

        written = table.get("pools")
        if written is None:
            return ()
        if not isinstance(written, dict) or not written:
            try:
                return read_pools(node_of(written))
            except RequestError as error:
                self._note(refusal_in(document, error), closes=True)
                return ()
        read = read_each_pool({name: node_of(item) for name, item in written.items()})
        return tuple(self._pool(document, name, written[name], it) for name, it in read.items())

    def _pool(self, document: Document, name: str, written: object, read: Pool | RequestError) -> Pool:
        if isinstance(read, Pool):
            return replace(read, where=document.place_of(read.where))
        error = refusal_in(document, read)
        self._note(error, closes=False, until="pods that ask for this pool are refused")
        # A pool asked by claims keeps this door, so that the kubelet can still unprepare the claims of its pods.
        claimed = isinstance(written, dict) and written.get("door") == PoolDoor.CLAIMS
        door = PoolDoor.CLAIMS if claimed else PoolDoor.ANNOTATIONS
        return Pool(name=bounded(name), modes=tuple(Mode), door=door, where=error.where, closed=_reason(error))

    def _rules(self, document: Document, table: Mapping[str, Any], pools: tuple[Pool, ...]) -> tuple[Rule, ...]:
        from nri_rdma.text.pools import check_rules, node_of, read_rules

        if "rules" not in table:
            return ()
        try:
            rules = read_rules(node_of(table["rules"]))
            check_rules(pools or (Pool(name=DEFAULT_POOL, modes=tuple(Mode)),), rules)
        except RequestError as error:
            self._note(refusal_in(document, error), closes=True)
            return ()
        return tuple(replace(rule, where=document.place_of(rule.where)) for rule in rules)


def _reason(error: SettingError) -> str:
    return f"{error.what}, {error.where}" if error.where else error.what
