"""A run from shards ends in the bits of one from a folder of the same files, killed or not, on one or two processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ..data.shard_files import write_shards
from .killed_processes import Server
from .test_killed import same


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same 64 pictures of different sizes, which are read one by one, as a folder and as three shards."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "files").mkdir()
    draw = np.random.default_rng(0)
    for number in range(64):
        pixels = draw.integers(0, 256, (16 + number % 3, 16 + number % 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "files" / f"{number:02}.png")
    write_shards(folder / "shards", sorted((folder / "files").iterdir()), 3)
    return str(folder / "files"), str(folder / "shards")


@pytest.mark.parametrize("processes", [1, 2])
def test_shards_train_as_their_files(processes: int, server: Server, sources: tuple[str, str], tmp_path: Path) -> None:
    files, shards = sources
    job: dict[str, Any] = {"task": "train", "method": "MoCoV2"}
    code, output = server(tmp_path / "files", processes=processes, source=files, **job)
    assert code == 0, output
    point: dict[str, Any] = {"where": "step", "at": 6, "rank": processes - 1}
    code, output = server(tmp_path / "shards", processes=processes, source=shards, **point, **job)
    assert code == -signal.SIGKILL, output
    code, output = server(tmp_path / "shards", processes=processes, source=shards, **job)
    assert code == 0, output
    ends = [torch.load(tmp_path / kind / "last.ckpt", weights_only=True) for kind in ("files", "shards")]
    assert ends[0]["step"] == 12
    same(*ends)
    for name in ("encoder.safetensors", "tree.safetensors"):
        assert (tmp_path / "shards" / name).read_bytes() == (tmp_path / "files" / name).read_bytes()
