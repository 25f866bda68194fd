"""What is clustered: features centred, reduced to principal components and whitened, against numpy and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, SemanticPaths, hierarchical_kmeans
from hirl.hierarchy.builder import HierarchicalKMeans

LEVELS = (40, 10, 3)
REDUCTION: dict[str, Any] = {"centre": True, "components": 8, "whiten": 0.5}


@pytest.fixture(scope="module")
def features() -> Tensor:
    """Eight classes, in directions that differ by a hundredth of the rows' common mean, and a falling spectrum."""
    generator = torch.Generator().manual_seed(0)
    classes = 0.3 * torch.randn(8, 32, generator=generator)
    which = torch.arange(800) % 8
    scale = torch.arange(1, 33).float() ** -0.5
    return 5 + classes[which] + 0.2 * scale * torch.randn(800, 32, generator=generator)


def by_numpy(features: Tensor, *, centre: bool, components: int | None, whiten: float) -> Tensor:
    """Reduced rows by a singular value decomposition of the rows, at unit length."""
    units = F.normalize(features.double(), dim=1).numpy()
    mean = units.mean(0) if centre else 0
    _, singular, axes = np.linalg.svd(units - mean, full_matrices=False)
    deviation = singular[:components] / len(units) ** 0.5
    return F.normalize(torch.from_numpy((units - mean) @ axes[:components].T / deviation**whiten), dim=1)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize(("components", "whiten"), [(8, 0.0), (8, 0.5), (None, 1.0)])
def test_the_reduced_space_is_that_of_numpy(
    features: Tensor, centre: bool, components: int | None, whiten: float
) -> None:
    from hirl.hierarchy.reduction import fit_reduction
    from hirl.hierarchy.rows import UnitRows
    from hirl.ranks import Ranks

    rows = UnitRows(features)
    found = fit_reduction(rows, Ranks(None), centre=centre, components=components, whiten=whiten)
    ours = found.project(rows)[:].double()
    theirs = by_numpy(features, centre=centre, components=components, whiten=whiten)
    torch.testing.assert_close(ours.abs(), theirs.abs(), rtol=1e-3, atol=1e-3)  # an axis has no sign
    torch.testing.assert_close(ours @ ours.T, theirs @ theirs.T, rtol=1e-3, atol=1e-3)


def test_raw_features_are_assigned_and_prototypes_are_mean_directions_of_raw_features(
    features: Tensor, tmp_path: Path
) -> None:
    tree = hierarchical_kmeans(features, LEVELS, **REDUCTION)
    tree.save(tmp_path / "tree.safetensors")
    for other in (tree, PrototypeTree.load(tmp_path / "tree.safetensors"), tree.to("cpu")):
        assert torch.equal(other.assign(features), tree.leaves)
        assert torch.equal(other.assign(7 * features[:100]), tree.leaves[:100])
    assert tree.dim == 32
    units = F.normalize(features, dim=1)
    for level, nodes in enumerate(tree.prototypes):
        for node in range(tree.levels[level]):
            mean = F.normalize(units[tree.image_paths[:, level] == node].sum(0), dim=0)
            torch.testing.assert_close(nodes[node], mean)


def test_classes_hidden_by_a_common_mean_and_a_few_large_components_are_found() -> None:
    """Most of the variance lies in two components that say nothing; half whitening lets the others count."""
    generator = torch.Generator().manual_seed(0)
    which = torch.arange(600) % 6
    features = 0.5 * F.one_hot(which, 6).float() @ torch.randn(6, 24, generator=generator)
    features[:, :2] = 6 * torch.randn(600, 2, generator=generator)
    features += 0.1 * torch.randn(600, 24, generator=generator)

    def pure(**options: Any) -> float:
        tree = hierarchical_kmeans(features, (60, 12), **options)
        return sum(int(which[tree.leaves == leaf].bincount().max()) for leaf in range(60)) / 600

    assert pure(centre=True, components=12, whiten=0.5) > pure() + 0.1


def test_learning_goes_on_with_raw_prototypes_and_from_the_last_tree(features: Tensor) -> None:
    paths = SemanticPaths(32, LEVELS, builder=HierarchicalKMeans(**REDUCTION))
    first = paths.refresh(features)
    again = paths.refresh(features + 0.01 * torch.randn(features.shape, generator=torch.Generator().manual_seed(1)))
    assert float((again.leaves == first.leaves).float().mean()) > 0.8
    assert float(paths(features[:8], torch.arange(8)).detach()) > 0
    restored = SemanticPaths(32, LEVELS)
    restored.load_state_dict(paths.state_dict())
    assert torch.equal(restored.find_leaves(target=features), paths.find_leaves(target=features))


def test_rows_equal_to_the_mean_and_fewer_directions_than_components() -> None:
    features = torch.eye(4)[torch.arange(40) % 4]
    features = torch.cat((features, torch.ones(1, 4)))  # the mean direction of all
    tree = hierarchical_kmeans(features, (4, 2), centre=True, components=50, whiten=1.0)
    assert len(tree.leaves[:40].reshape(10, 4).unique(dim=0)) == 1
    with pytest.raises(ValueError, match="only 1 different directions"):
        hierarchical_kmeans(torch.ones(20, 4), (4, 2), centre=True)


def test_settings_and_files_that_make_no_sense_are_refused(features: Tensor) -> None:
    with pytest.raises(ValueError, match="components is 0, but must be at least 1, or null for all"):
        HierarchicalKMeans(components=0)
    with pytest.raises(ValueError, match=r"whiten is 2.0, but must be between 0 .* and 1 .*"):
        HierarchicalKMeans(whiten=2.0)
    named = hierarchical_kmeans(features, LEVELS, **REDUCTION).tensors()
    with pytest.raises(ValueError, match="expected the tensors"):
        PrototypeTree.from_tensors({name: tensor for name, tensor in named.items() if name != "reduced.axes"})
    with pytest.raises(ValueError, match="reduced space must be of dimension 32"):
        PrototypeTree.from_tensors(
            named | {"reduced.mean": torch.zeros(31), "reduced.axes": named["reduced.axes"][:31]}
        )
