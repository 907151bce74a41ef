"""The sizes of the image's parts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.image import layout
from deploy.image.archive import Layer

_SMALL = 1_000_000
_OTHERS = "smaller Python packages"


def describe(root: Path, layers: Sequence[Layer]) -> Iterator[str]:
    """Yield a line for each part, and for each layer as it is sent."""
    sizes: Counter[str] = Counter()
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sizes[part_of(str(path.relative_to(root)))] += path.stat().st_size
    small = {name for name, size in sizes.items() if size < _SMALL and "/" not in name}
    for name in small - {"nri_rdma"}:
        sizes[_OTHERS] += sizes.pop(name)
    for name, size in sizes.most_common():
        yield f"{size / 1e6:8.1f} MB  {name}"
    yield f"{sizes.total() / 1e6:8.1f} MB  all files"
    for number, layer in enumerate(layers, 1):
        yield f"{len(layer.packed) / 1e6:8.1f} MB  layer {number}, compressed"


def part_of(name: str) -> str:
    """Return the part that a file belongs to, by its path in the image; a Python package is a part of its own."""
    site = f"{layout.SITE}/"
    if name.startswith(site):
        return name.removeprefix(site).partition("/")[0].partition(".")[0]
    if name.startswith(f"{layout.STANDARD_LIBRARY}/"):
        return "lib/python3.13: the standard library"
    if name.startswith(f"{layout.FOLDER}/lib/"):
        return "lib/: shared libraries"
    if name.startswith(f"{layout.BIN}/"):
        return "bin/: interpreter, hooks"
    return "usr/, etc/, var/: drivers of verbs, certificates, licences, records"
