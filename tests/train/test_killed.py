"""A run killed anywhere and continued by the same call ends in the same bits as one that was left alone."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "killed_run.py"
STEPS = 4 * (100 // 16)


def run(method: str, folder: Path, where: str = "never", at: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), method, str(folder), where, str(at)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the bit, whatever is nested in what."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{where}[{place}]")
    else:
        assert one == other, where


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for method in ("MoCoV2", "DINO"):
        folders[method] = tmp_path_factory.mktemp("untouched") / method
        done = run(method, folders[method])
        assert done.returncode == 0, done.stderr
    return folders


def killed_and_continued(method: str, folder: Path, where: str, at: int, untouched: Path) -> None:
    killed = run(method, folder, where, at)
    assert killed.returncode == -9, killed.stderr
    done = run(method, folder)
    assert done.returncode == 0, done.stderr
    ends = [torch.load(place / "last.ckpt", weights_only=True) for place in (untouched, folder)]
    assert ends[0]["step"] == STEPS
    same(ends[0], ends[1])
    for file in ("encoder.safetensors", "tree.safetensors"):
        assert (folder / file).read_bytes() == (untouched / file).read_bytes()
    assert not list(folder.glob(".*.part")), "what a killed process left half written is still there"


@pytest.mark.parametrize(
    ("method", "where", "at"),
    [("MoCoV2", "step", 9), ("DINO", "step", 20), ("MoCoV2", "refresh", 3), ("DINO", "checkpoint", 2)],
)
def test_killed_once(method: str, where: str, at: int, tmp_path: Path, untouched: dict[str, Path]) -> None:
    killed_and_continued(method, tmp_path / "run", where, at, untouched[method])


@pytest.mark.long
@pytest.mark.parametrize("point", range(26))
def test_killed_anywhere(point: int, tmp_path: Path, untouched: dict[str, Path]) -> None:
    draw = random.Random(point)
    method = ("MoCoV2", "DINO")[point % 2]
    where = draw.choice(["step", "step", "refresh", "checkpoint"])
    at = draw.randrange({"step": STEPS, "refresh": 8, "checkpoint": 6}[where])
    killed_and_continued(method, tmp_path / "run", where, at, untouched[method])
