"""A folder with everything that the commands and the code of the docs name."""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from hirl.cli.main import main
from hirl.data import Shapes
from hirl.hierarchy.builder import hierarchical_kmeans
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import MoCoV2
from hirl.train.pretrain import pretrain

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the commands name: photos, labelled images, runs, features, a method."""
    folder = tmp_path_factory.mktemp("world")
    pictures = Shapes(images=240, size=32, cache=False)
    for index in range(240):
        image = Image.fromarray(pictures.read(index).permute(1, 2, 0).numpy())
        places = [f"pets/{'train' if index < 210 else 'val'}/{index % 2}/{index}.png"]
        if index < 48:
            places += [f"photos/{index:02d}.png", "cat.jpg", "query.jpg"]
        for place in places:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            image.save(folder / place)
    (folder / "shards").mkdir()
    for part in range(4):
        with tarfile.open(folder / "shards" / f"{part}.tar", "w") as shard:
            for file in sorted((folder / "photos").iterdir())[12 * part : 12 * part + 12]:
                shard.add(file, file.name)
    narrow = {"channels": [8, 8, 16, 16]}
    method = MoCoV2(backbone="resnet10t", backbone_args=narrow, dim=16, queue_length=32, bn_splits=2)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "image_size": 32, "accelerator": "cpu", "workers": 0}
    hierarchy = Hierarchy(levels=(12, 4, 2), negatives=5, start_epoch=1)
    run = pretrain(folder / "pets", method, hierarchy, out=folder / "runs" / "x", **options)
    for name in ("y", "RUN", "photos-dino-hirl-0", "photos-mocov2-hirl-0"):
        shutil.copytree(run.folder, folder / "runs" / name)
    adapted = folder / "runs" / "photos-mocov2-hirl-0"  # as if it had started from a frozen encoder
    shutil.copy(adapted / "encoder.safetensors", adapted / "start.safetensors")
    features = np.random.default_rng(0).normal(size=(48, 16)).astype(np.float32)
    np.save(folder / "features.npy", features)
    hierarchical_kmeans(features, levels=(12, 4, 2)).save(folder / "tree.safetensors")
    assert main(["embed", str(run.folder), "--data", str(folder / "photos"), "--out", str(folder / "z.npz")]) == 0
    (folder / "my_package.py").write_text("from hirl.methods import SimSiam\n\n\nclass MyMethod(SimSiam): ...\n")
    own = {"method": {"class_path": "my_package.MyMethod", "init_args": {"dim": 32}}, "epochs": 2}
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    return folder


@pytest.fixture
def inside(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(world)
    monkeypatch.syspath_prepend(str(world))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield world
    sys.modules.pop("my_package", None)
