"""What several tests of the command share."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of nine images of 40 × 30 pixels in three classes below two."""
    folder = tmp_path / "photos"
    for place in ("cats/tabby", "cats/persian", "dogs/poodle"):
        (folder / place).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (40, 30), (number * 80, 90, 120)).save(folder / place / f"{number}.png")
    return folder
