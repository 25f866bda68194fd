"""The examples for other people's trainers run, and end with a tree."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from hirl.data import Shapes

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--epochs", "2", "--size", "32", "--batch", "16", "--backbone", "resnet10t"]


def run(environment: dict[str, str], *arguments: str | Path, folder: Path) -> str:
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / arguments[0]), *map(str, arguments[1:])]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_lightning(with_lightning: dict[str, str], tmp_path: Path) -> None:
    shown = run(with_lightning, "lightning_digits.py", "--epochs", "3", "--start-epoch", "1", folder=tmp_path)
    assert "PrototypeTree(levels=(160, 40, 10), dim=64, images=1797)" in shown
    assert "loss_spd 0.000" not in shown


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds photos/."""
    pictures = Shapes(images=48, size=32, cache=False)
    (tmp_path / "photos").mkdir()
    for index in range(48):
        Image.fromarray(pictures.read(index).permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{index}.png")
    return tmp_path


@pytest.mark.parametrize("name", ["lightly_simclr.py", pytest.param("lightly_dino.py", marks=pytest.mark.long)])
def test_lightly(name: str, with_lightning: dict[str, str], folder: Path) -> None:
    more = ["--prototypes", "64"] if "dino" in name else []
    shown = run(with_lightning, name, "photos", *SMALL, *more, folder=folder)
    assert "images=48)" in shown


@pytest.mark.skipif(find_spec("stable_pretraining") is None, reason="needs the package stable-pretraining")
def test_stable_pretraining(with_lightning: dict[str, str], folder: Path) -> None:
    environment = with_lightning | {"XDG_CACHE_HOME": str(folder), "HOME": str(folder)}  # where it keeps notes of a run
    shown = run(environment, "stable_pretraining_simclr.py", "photos", *SMALL, folder=folder)
    assert "images=48)" in shown
