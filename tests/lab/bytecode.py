"""What the guest's python has compiled of the checkout, kept for the next run: under emulation it takes each machine a
quarter of a minute to do it again. Whether a file of it still fits its source, python sees by itself (time and size).
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = "bytecode"
ARCHIVE = "bytecode.tar"
"""Among what the guest hands out: the files by their place in the checkout."""


def keep(archive: Path, folder: Path) -> None:
    """Take what a machine handed out into the folder. Several may do so at once, of the same sources."""
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            path = Path(member.name)
            if content is None or path.suffix != ".pyc" or path.is_absolute() or ".." in path.parts:
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f"{target.name}.{archive.parent.name}")
            beside.write_bytes(content.read())
            beside.replace(target)


def kept(folder: Path, checkout: Path) -> Iterator[tuple[Path, Path]]:
    """The files for sources that the checkout still has, each with its place there."""
    for path in sorted(folder.rglob("*.pyc")):
        place = path.relative_to(folder)
        source = place.parent.parent / f"{path.name.partition('.')[0]}.py"
        if (checkout / source).exists():
            yield path, place
