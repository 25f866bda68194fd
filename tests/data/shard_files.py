"""Tar shards for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_shard(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix in (".gz", ".tgz") else "w") as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_shards(folder: Path, files: Sequence[Path], shards: int) -> None:
    """The files in order, as equally distributed over the shards as possible."""
    size = -(-len(files) // shards)
    for shard in range(shards):
        part = files[shard * size : (shard + 1) * size]
        write_shard(folder / f"{shard:04}.tar", [(file.name, file.read_bytes()) for file in part])
