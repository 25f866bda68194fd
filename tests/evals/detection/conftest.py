"""Folders of annotated pictures that tests may change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .drawn_set import Document, draw_set


@pytest.fixture
def coco(tmp_path: Path) -> Callable[..., Path]:
    """Makes a COCO-format folder with the parts train and val of the same pictures; `change` edits the train split."""

    def make(change: Callable[[Document], object] | None = None, **arguments: Any) -> Path:
        folder = tmp_path / "coco"
        document = draw_set(folder, **arguments)
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / "instances_val.json").write_text(json.dumps(document))
        if change is not None:
            change(document)
        (folder / "annotations" / "instances_train.json").write_text(json.dumps(document))
        return folder

    return make
