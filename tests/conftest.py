"""What several tests share."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, Run, ranks
from hirl.data import Shapes

from .drawn_set import Document, draw_set

# The folders whose files take longest, so that no worker begins such a file when the others have nothing left to do.
SLOW = ("train", "studies", "integrations", "docs", "runs", "evals", "explore", "methods")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of minutes have no limit, as how many depends on how much is asked of them; slow folders come first."""
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.timeout(0))
    items.sort(key=lambda item: SLOW.index(item.path.parent.name) if item.path.parent.name in SLOW else len(SLOW))


@pytest.fixture(autouse=True, scope="session")
def quick_processes() -> None:
    """Those that tests start find no packages but those of a user's installation, which saves seconds for each."""
    paths = [str(Path(__file__).parent / "stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process one of several: as_rank(1, of=3, mean=f), where f stands for what the others answer."""

    def become(rank: int = 0, *, of: int = 2, **answers: Callable[[torch.Tensor], torch.Tensor]) -> None:
        world = ranks.Ranks(None)
        vars(world).update(rank=rank, size=of, **answers)
        monkeypatch.setattr(ranks, "world", lambda: world)

    return become


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder and all below it read-only, for root as well, who may write anywhere: read_only(folder)."""
    access = os.access

    def restrict(folder: Path) -> None:
        monkeypatch.setattr(
            os, "access", lambda path, mode: access(path, mode) and not Path(path).is_relative_to(folder)
        )

    return restrict


@pytest.fixture
def random_tree() -> Callable[..., PrototypeTree]:
    """Makes a tree of random prototypes and parents."""

    def make(levels: tuple[int, ...], dim: int, *, images: int = 20, seed: int = 0) -> PrototypeTree:
        generator = torch.Generator().manual_seed(seed)

        def ids(below: int, count: int) -> Tensor:
            return torch.randint(below, (count,), generator=generator)

        return PrototypeTree(
            prototypes=tuple(F.normalize(torch.randn(size, dim, generator=generator), dim=1) for size in levels),
            parents=tuple(ids(levels[level + 1], levels[level]) for level in range(len(levels) - 1)),
            leaves=ids(levels[0], images),
        )

    return make


def shapes(split: str = "train", **changes: Any) -> Shapes:
    settings: dict[str, Any] = {"images": 144, "size": 16, "cache": False}
    return Shapes(split=split, **(settings | changes))


@pytest.fixture(scope="session")
def picture_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .npz of drawn pictures in two parts, with labels at three levels."""
    path = tmp_path_factory.mktemp("pictures") / "shapes.npz"
    parts = {part: shapes(part) for part in ("train", "val")}
    arrays = {f"{part}_images": drawn.pixels.numpy() for part, drawn in parts.items()}
    arrays |= {f"{part}_labels": drawn.labels.numpy() for part, drawn in parts.items()}
    np.savez(path, allow_pickle=False, **arrays)
    return path


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


@pytest.fixture(scope="session")
def trained_runs(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two short runs on the pictures: with the hierarchy, and the baseline."""
    from hirl.hierarchy.settings import Hierarchy
    from hirl.methods import MoCoV2
    from hirl.train.pretrain import pretrain

    folder = tmp_path_factory.mktemp("runs")
    for arm, hierarchy in (("hirl", Hierarchy(levels=(24, 6), negatives=5, start_epoch=1)), ("base", None)):
        method = MoCoV2(
            backbone="resnet10t",
            backbone_args={"channels": [8, 8, 16, 16]},
            dim=16,
            queue_length=96,
            bn_splits=2,
            momentum=0.9,
        )
        options: dict[str, Any] = {"epochs": 2, "batch_size": 48, "accelerator": "cpu", "devices": 1, "knn_every": 2}
        options |= {"keep_every": 1}
        pretrain(str(picture_files), method, hierarchy, out=folder / arm, **options)
    return {arm: folder / arm for arm in ("hirl", "base")}


@pytest.fixture
def runs(trained_runs: dict[str, Path], tmp_path: Path) -> dict[str, Run]:
    """Copies of the two runs that a test may write into."""
    return {arm: Run(shutil.copytree(folder, tmp_path / "runs" / arm)) for arm, folder in trained_runs.items()}
