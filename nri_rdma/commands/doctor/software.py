"""Checks of the installed program: the Python version, the packages that it needs, and its configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution

from nri_rdma import __version__
from nri_rdma.commands.common.unit_environment import unit_variables
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import misnamed_variables
from nri_rdma.model.pool import PoolDoor
from nri_rdma.observe.export import exporter_kind

OLDEST_PYTHON = (3, 11)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*?)\s*(?:;(.*))?")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def python(machine: Machine) -> Finding:
    """Check the version of the Python interpreter that runs this program."""
    found = f"Python {'.'.join(map(str, machine.python))}"
    if machine.python < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return problem("python", f"{found}, and nri-rdma needs {oldest}", f"install it with Python {oldest} or newer")
    return ok("python", found)


def packages(machine: Machine) -> Finding:
    """Check that the packages that nri-rdma depends on are installed in suitable versions, including the packages of
    each extra that this machine's settings need."""
    ours = _distribution("nri-rdma", machine)
    if ours is None:
        return not_applicable("packages", f"nri-rdma {__version__} runs without being installed")
    faults = list(_faults(ours, machine))
    extras = {extra: why for extra, why in _extras(machine) if list(_faults(ours, machine, extra))}
    if extras:
        lacking = (f"{fault}, which {why} needs" for it, why in extras.items() for fault in _faults(ours, machine, it))
        wheel = f"'FILE.whl[{','.join(extras)}]'"
        fix = f"install it again with these extras: pip install --force-reinstall {wheel}, and restart the daemon"
        return problem("packages", f"nri-rdma {ours.version}: {'; '.join((*faults, *lacking))}", fix)
    if faults:
        return problem(
            "packages",
            f"nri-rdma {ours.version}: {'; '.join(faults)}",
            "install it again with what it needs: pip install --force-reinstall FILE.whl",
        )
    return ok("packages", f"nri-rdma {ours.version}, with all that it depends on")


def configuration(machine: Machine) -> Finding:
    """Check that the configuration is valid, and that each environment variable with our prefix belongs to a
    setting."""
    error = machine.setting_error
    if error is not None:
        where = f"{error.where}: " if error.where else ""
        return problem("configuration", f"{where}{error.what}", error.hint or "nri-rdma config check FILE")
    misnamed = dict(misnamed_variables({**unit_variables(machine.etc), **machine.environment}))
    if misnamed:
        return warning(
            "configuration",
            f"nothing reads {' and '.join(misnamed)}: no setting has that variable",
            f"write {' and '.join(misnamed.values())}, and restart the daemon",
        )
    if not machine.config_file.exists():
        return ok("configuration", f"{machine.config_file} is not there: defaults, flags and environment count")
    pools, rules = _counted(len(machine.settings.pools), "pool"), _counted(len(machine.settings.rules), "rule")
    return ok("configuration", f"{machine.config_file}: {pools}, {rules}")


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _extras(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the optional extras of the package that this machine needs, each with the setting that needs it."""
    claimed = ", ".join(pool.name for pool in machine.settings.pools if pool.door is PoolDoor.CLAIMS)
    if claimed:
        yield "claims", f'pool {claimed} (door = "claims")'
    if exporter_kind({**unit_variables(machine.etc), **machine.environment}) == "otlp":
        yield "otlp", "OTEL_TRACES_EXPORTER = otlp"


def _faults(ours: Distribution, machine: Machine, extra: str = "") -> Iterator[str]:
    """Yield a sentence for each dependency that is missing or has an unsuitable version. With `extra`, look only at the
    dependencies of that extra."""
    for text in ours.requires or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is None or (_EXTRA.findall(match[3] or "") or [""]) != [extra]:
            continue
        name, bounds = match[1], match[2]
        there = _distribution(name, machine)
        if there is None:
            yield f"{name} is missing"
        elif not _is_within(there.version, bounds):
            yield f"{name} is {there.version}, and has to be {bounds}"


def _distribution(name: str, machine: Machine) -> Distribution | None:
    return next(iter(Distribution.discover(name=name, path=list(machine.package_folders))), None)


def _is_within(version: str, bounds: str) -> bool:
    """Return whether a version satisfies the bounds of a requirement. Only `>=` and `<` are understood."""
    have = _numbers(version)
    for sign, limit in _BOUND.findall(bounds):
        wanted = _numbers(limit)
        padded = have + (0,) * (len(wanted) - len(have))
        if (padded < wanted) if sign == ">=" else (padded >= wanted):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
