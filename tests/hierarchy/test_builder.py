"""Tree builders: the defaults of hierarchical K-means, and a builder of one's own wherever trees are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import HierarchicalKMeans, Hierarchy, PrototypeTree, SemanticPaths, TreeBuilder, hierarchical_kmeans, pretrain
from hirl.cli.main import main
from hirl.config import to_plain
from hirl.data import Shapes
from hirl.hierarchy.rows import Features
from hirl.methods import MoCoV2


@dataclass(frozen=True, kw_only=True)
class Blocks(TreeBuilder):
    """Cuts the data set into blocks of consecutive images, whatever they show."""

    scale: float = 1.0

    def __call__(self, features: Features, levels: Sequence[int], **options: Any) -> PrototypeTree:
        rows = F.normalize(torch.as_tensor(features).float(), dim=1)
        index: Tensor | None = options.get("index")
        places = torch.arange(len(rows)) if index is None else index
        leaves = places * levels[0] // len(rows)
        means = torch.zeros(levels[0], rows.shape[1]).index_add_(0, leaves, rows)
        prototypes, parents = [F.normalize(means * self.scale, dim=1)], []
        for size in levels[1:]:
            parents.append(torch.arange(len(prototypes[-1])) * size // len(prototypes[-1]))
            coarser = torch.zeros(size, rows.shape[1]).index_add_(0, parents[-1], prototypes[-1])
            prototypes.append(F.normalize(coarser, dim=1))
        return PrototypeTree(tuple(prototypes), tuple(parents), leaves)


class Broken(TreeBuilder):
    """Forgets the last image, and its own argument."""

    def __init__(self, *, depth: int = 2) -> None:
        self.layers = depth

    def __call__(self, features: Features, levels: Sequence[int], **options: Any) -> PrototypeTree:
        return Blocks()(features[:-1], levels, **options)


@pytest.fixture
def features(generator: torch.Generator) -> Tensor:
    return torch.randn(100, 8, generator=generator)


def test_the_function_is_the_builder_in_one_call(features: Tensor) -> None:
    settings: dict[str, Any] = {"iterations": 3, "restarts": 2, "tolerance": 0.1, "spherical": False}
    for given in ({}, settings):
        built = HierarchicalKMeans(**given)(features, (12, 4), seed=5)
        assert torch.equal(hierarchical_kmeans(features, (12, 4), seed=5, **given).leaves, built.leaves)


def test_semantic_paths_take_any_builder(features: Tensor) -> None:
    paths = SemanticPaths(8, (10, 5), builder=Blocks())
    order = torch.randperm(100)
    tree = paths.refresh(features[order], index=order)
    assert paths.tree is tree
    assert torch.equal(tree.leaves, torch.arange(100) // 10)
    assert torch.equal(tree.parents[0], torch.arange(10) // 2)
    assert float(paths(features[:4], torch.arange(4)).detach()) > 0


def test_a_builder_must_return_one_leaf_per_row(features: Tensor) -> None:
    paths = SemanticPaths(8, (10, 5), builder=Broken())
    with pytest.raises(ValueError, match="Broken returned 99 leaves for 100 rows"):
        paths.refresh(features)
    assert paths.tree is None


def test_a_builder_is_written_as_its_class_and_arguments() -> None:
    plain = to_plain(Hierarchy(builder=Blocks(scale=2.0)))["builder"]
    assert plain["class_path"].endswith("Blocks")
    assert plain["init_args"] == {"scale": 2.0}
    assert to_plain(Hierarchy())["builder"] is None
    plain = to_plain(Hierarchy().resolve(100, 10))["builder"]
    assert plain["class_path"] == "hirl.hierarchy.builder.HierarchicalKMeans"
    settings = {"iterations": 20, "restarts": 1, "tolerance": 0.002, "spherical": True}
    reduction = {"centre": False, "components": None, "whiten": 0.0}
    assert (
        plain["init_args"]
        == settings
        | {"order": "top-down", "weighted": False, "path_steps": 5, "linked": 5000, "averaged": 0}
        | reduction
    )
    with pytest.raises(ValueError, match="Broken must store its argument 'depth'"):
        to_plain(Hierarchy(builder=Broken()))


def test_pretraining_takes_any_builder(tmp_path: Path) -> None:
    method = MoCoV2(
        backbone="resnet10t", backbone_args={"channels": [8, 8, 16, 16]}, dim=16, queue_length=40, bn_splits=2
    )
    hierarchy = Hierarchy(levels=(10, 5), negatives=5, start_epoch=1, builder=Blocks(scale=3.0))
    images = Shapes(images=60, size=16, cache=False)
    run = pretrain(
        images, method, hierarchy, out=tmp_path / "run", epochs=2, batch_size=20, accelerator="cpu", devices=1
    )
    # The tree is the builder's; each image of a finished run is in the leaf nearest to it.
    assert torch.equal(run.tree.parents[0], torch.arange(10) // 2)
    kmeans = Hierarchy(levels=(10, 5), negatives=5, start_epoch=1)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 20, "accelerator": "cpu", "devices": 1}
    other = pretrain(images, method.unbuilt_copy(), kmeans, out=tmp_path / "other", **options)
    assert not torch.equal(run.tree.prototypes[0], other.tree.prototypes[0])
    assert any(line.get("loss_spd", 0) > 0 for line in run.metrics())
    assert run.config["hierarchy"]["builder"]["init_args"] == {"scale": 3.0}


def test_the_command_line_takes_any_builder(
    features: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from hirl import HierarchicalKMeans\nclass Twice(HierarchicalKMeans):\n    pass\n"
    (tmp_path / "own_builder.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    np.save(tmp_path / "features.npy", features.numpy())
    line = ["cluster", str(tmp_path / "features.npy"), "--levels", "10", "5", "--out", str(tmp_path / "t.safetensors")]
    line += ["--builder", "own_builder.Twice"]
    assert main([*line, "--iterations", "3"]) == 2
    assert "are for K-means" in capsys.readouterr().err
    assert main([*line, "--builder.iterations", "1", "--builder.restarts", "2"]) == 0
    expected = hierarchical_kmeans(features, (10, 5), iterations=1, restarts=2)
    assert torch.equal(PrototypeTree.load(tmp_path / "t.safetensors").leaves, expected.leaves)
