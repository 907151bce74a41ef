"""The machine's own Debian mirror, read from its apt sources.

Both formats are understood: deb822 (`*.sources`) and one line per source (`*.list`). Standard library only.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)$")
_RELATIVE_SUITES = frozenset({"stable", "oldstable", "oldoldstable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One archive of packages: a place, its suites, its components and the key that signs it."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""

    def stanza(self, suites: tuple[str, ...]) -> str:
        """This archive as a deb822 paragraph that names other suites of it."""
        lines = ["Types: deb", f"URIs: {' '.join(self.uris)}", f"Suites: {' '.join(suites)}", "Components: main"]
        if self.signed_by:
            lines.append(f"Signed-By: {self.signed_by}")
        return "\n".join(lines) + "\n"


def parse_deb822(text: str) -> tuple[Source, ...]:
    """The enabled binary sources of a `.sources` file."""
    return tuple(source for paragraph in _paragraphs(text) if (source := _from_fields(paragraph)) is not None)


def parse_one_line(text: str) -> tuple[Source, ...]:
    """The binary sources of a `.list` file."""
    found = []
    for raw in text.splitlines():
        match = _ONE_LINE.match(raw.split("#", 1)[0].strip())
        if match is None:
            continue
        options = dict(word.split("=", 1) for word in (match["options"] or "").split() if "=" in word)
        found.append(
            Source(
                uris=(match["uri"],),
                suites=(match["suite"],),
                components=tuple(match["components"].split()),
                signed_by=options.get("signed-by", ""),
            )
        )
    return tuple(found)


def read_sources(etc_apt: Path) -> tuple[Source, ...]:
    """Every enabled binary source under a machine's /etc/apt."""
    folder = etc_apt / "sources.list.d"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found: list[Source] = []
    for path in (etc_apt / "sources.list", *files):
        if path.suffix == ".sources":
            found += parse_deb822(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            found += parse_one_line(path.read_text())
    return tuple(found)


def options_beside(sources: Path, architecture: str) -> dict[str, str]:
    """apt's options for lists and a cache beside this file of sources; of the machine it reads its keys and proxies."""
    return {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State::Lists": str(sources.parent / "lists"),
        "Dir::Cache": str(sources.parent / "cache"),
        "APT::Architecture": architecture,
        "APT::Sandbox::User": "root",  # the folders are root's
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Retries": "3",
    }


def main_archive(sources: tuple[Source, ...], codename: str) -> Source | None:
    """The archive that holds the machine's release itself, or None when its sources name none."""
    for source in sources:
        named = codename in source.suites or not _RELATIVE_SUITES.isdisjoint(source.suites)
        if named and "main" in source.components:
            return source
    return None


def security_archive(sources: tuple[Source, ...], codename: str) -> Source | None:
    """The archive with the release's security updates, or None when the machine uses none."""
    wanted = f"{codename}-security"
    return next((source for source in sources if wanted in source.suites and "main" in source.components), None)


def _paragraphs(text: str) -> list[dict[str, str]]:
    paragraphs: list[dict[str, str]] = [{}]
    key = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            paragraphs.append({})
            key = ""
        elif line[0].isspace():
            if key:
                paragraphs[-1][key] += "\n" + line.strip()
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            paragraphs[-1][key] = value.strip()
    return [paragraph for paragraph in paragraphs if paragraph]


def _from_fields(fields: dict[str, str]) -> Source | None:
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false", "0"}:
        return None
    signed_by = fields.get("signed-by", "")
    return Source(
        uris=tuple(fields.get("uris", "").split()),
        suites=tuple(fields.get("suites", "").split()),
        components=tuple(fields.get("components", "").split()),
        # A key given in full is folded over lines; apt wants it back with a leading blank, and an empty line as a dot.
        signed_by="\n ".join(signed_by.split("\n")),
    )
