"""Collects the problems of a configuration: of each setting, and the first one of each pool, of each rule and of
`adopt`. Loading a configuration, in contrast, stops at the first problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any  # Any: values before they are parsed

from nri_rdma.config.settings import Document, check_setting, load, parse_table, refusal_in, refuse_unknown
from nri_rdma.errors import RequestError, SettingError

MAX_PROBLEMS = 100
"""The most problems that are reported. For each unknown key the nearest known one is searched, which takes time."""


def problems_of(document: Document) -> tuple[SettingError, ...]:
    """Return the problems sorted by line: of each setting, and the first one of each pool and rule; at most a hundred.
    Conflicts between pools or rules are reported once each of them is right alone."""
    try:
        load({}, {}, document)
    except SettingError as first:
        return tuple(sorted(islice(_each(document), MAX_PROBLEMS), key=lambda error: error.line)) or (first,)
    return ()


def _each(document: Document) -> Iterator[SettingError]:
    try:
        table = parse_table(document)
    except SettingError as error:
        yield error
        return
    for key, value in table.items():
        try:
            refuse_unknown(key, document)
            check_setting(key, value, document)
        except SettingError as error:
            yield error
    yield from _of_tables(table, document)


def _of_tables(table: Mapping[str, Any], document: Document) -> Iterator[SettingError]:
    for read in (*_readers(table.get("pools"), table.get("rules")), *_adoption(table.get("adopt"))):
        try:
            read()
        except RequestError as error:
            yield refusal_in(document, error)


def _adoption(adopt: object) -> Iterator[Callable[[], object]]:
    """Yield a call that reads the table `adopt`, if there is one."""
    from nri_rdma.text.pools import node_of, read_adoption

    if adopt is not None:
        yield partial(read_adoption, node_of(adopt))


def _readers(pools: object, rules: object) -> Iterator[Callable[[], object]]:
    """Yield a call that reads each pool and each rule alone. If `pools` is no table, or `rules` no list, one call reads
    it as a whole."""
    from nri_rdma.text.pools import node_of, read_pools, read_rule, read_rules  # imported late, because it imports YAML

    if isinstance(pools, dict) and pools:
        yield from (partial(read_pools, node_of({name: pool})) for name, pool in pools.items())
    elif pools is not None:
        yield partial(read_pools, node_of(pools))
    if isinstance(rules, list) and rules:
        yield from (partial(read_rule, node_of(it), f"rules[{index}]", index + 1) for index, it in enumerate(rules))
    elif rules is not None:
        yield partial(read_rules, node_of(rules))
