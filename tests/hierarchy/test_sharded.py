"""Hierarchical K-means over real gloo processes equals one process on the joined rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl import PrototypeTree, hierarchical_kmeans

from ..forked import Forked, wait_for_all

LEVELS = (24, 6, 2)
SHARES = {2: [700, 1300], 3: [900, 1100, 0]}
DIM = 32


def rows() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    middle = F.normalize(torch.randn(30, DIM, generator=generator), dim=1)
    return middle[torch.randint(30, (2000,), generator=generator)] + 0.2 * torch.randn(2000, DIM, generator=generator)


def repeated() -> Tensor:
    """Two thousand rows of which all but five are the same, so that clusters run empty."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, DIM, generator=generator).repeat(2000, 1)
    features[torch.randperm(2000, generator=generator)[:5]] = torch.randn(5, DIM, generator=generator)
    return features


def heavy_tail() -> Tensor:
    """Classes of few rows beside classes of many: starts are drawn again, and paths leave leaves empty."""
    generator = torch.Generator().manual_seed(2)
    which = torch.multinomial(torch.arange(1, 101).float() ** -1.2, 2000, replacement=True, generator=generator)
    classes = F.normalize(torch.randn(100, DIM, generator=generator), dim=1)
    return classes[which] + 0.6 * F.normalize(torch.randn(2000, DIM, generator=generator), dim=1)


class Outcome:
    """What every rank of a group wrote, beside what one process gets from all rows."""

    def __init__(self, world: int, folder: Path) -> None:
        self.features = rows()
        self.start = hierarchical_kmeans(self.features, LEVELS, seed=11, iterations=2)
        task = {
            "features": self.features,
            "repeated": repeated(),
            "heavy tail": heavy_tail(),
            "levels": list(LEVELS),
            "shares": SHARES[world],
            "start": self.start.tensors(),
        }
        torch.save(task, folder / "task.pt")
        script = Path(__file__).parent / "rank_of_a_group.py"
        wait_for_all([Forked(script, str(rank), str(world), folder) for rank in range(world)])
        self.ranks: list[dict[str, Any]] = [
            torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(world)
        ]

    def joined(self, name: str) -> PrototypeTree:
        """The ranks' tree with the leaves of all rows; prototypes and parents must agree to the bit."""
        for key, tensor in self.ranks[0][name].items():
            assert key == "leaves" or all(torch.equal(tensor, rank[name][key]) for rank in self.ranks)
        leaves = torch.cat([rank[name]["leaves"] for rank in self.ranks])
        return PrototypeTree.from_tensors(self.ranks[0][name] | {"leaves": leaves})


@pytest.fixture(scope="module", params=[2, 3])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(request.param, tmp_path_factory.mktemp("group"))


def inertia(features: Tensor, tree: PrototypeTree) -> float:
    return float((F.normalize(features, dim=1) - tree.prototypes[0][tree.leaves]).square().sum(1).mean())


def same(one: PrototypeTree, other: PrototypeTree) -> None:
    assert torch.equal(one.leaves, other.leaves)
    assert all(map(torch.equal, one.parents, other.parents))
    for mine, theirs in zip(one.prototypes, other.prototypes, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_from_a_seed(outcome: Outcome) -> None:
    alone = hierarchical_kmeans(outcome.features, LEVELS, seed=3)
    together = outcome.joined("tree")
    assert inertia(outcome.features, together) == pytest.approx(inertia(outcome.features, alone), rel=1e-4)
    same(together, alone)


@pytest.mark.parametrize("name", ["bottom-up", "weighted"])
def test_bottom_up(outcome: Outcome, name: str) -> None:
    alone = hierarchical_kmeans(outcome.features, LEVELS, seed=3, order="bottom-up", weighted=name == "weighted")
    same(outcome.joined(name), alone)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ward", {}),
        ("ward of clusters", {"linked": 400}),
        ("ward, averaged", {"averaged": 5}),
        ("pooled features", {"averaged": 5, "centre": True, "components": 12, "whiten": 0.5}),
    ],
)
def test_ward(outcome: Outcome, name: str, options: dict[str, Any]) -> None:
    same(outcome.joined(name), hierarchical_kmeans(outcome.features, LEVELS, seed=3, order="ward", **options))


def test_from_given_prototypes(outcome: Outcome) -> None:
    alone = hierarchical_kmeans(outcome.features, LEVELS, init=outcome.start, iterations=3, tolerance=0)
    same(outcome.joined("warm"), alone)


def test_empty_clusters_are_filled_alike(outcome: Outcome) -> None:
    together = outcome.joined("starved")
    same(together, hierarchical_kmeans(repeated(), (6, 2)))
    assert int(together.sizes(0).min()) >= 1


def test_starts_that_are_drawn_again_and_leaves_that_are_filled(outcome: Outcome) -> None:
    same(outcome.joined("heavy tail"), hierarchical_kmeans(heavy_tail(), (200, 60, 6)))


def test_principal_components(outcome: Outcome) -> None:
    """Found from sums and products of columns alone; all spaces are those of one process."""
    alone = hierarchical_kmeans(outcome.features, LEVELS, seed=3, centre=True, components=12, whiten=0.5)
    together = outcome.joined("reduced")
    same(together, alone)
    assert alone.reduced is not None
    assert together.reduced is not None
    for name, tensor in alone.reduced.tensors().items():
        torch.testing.assert_close(together.reduced.tensors()[name], tensor, rtol=1e-4, atol=1e-4)


def test_only_sums_and_counts_travel(outcome: Outcome) -> None:
    """No message is longer than the sums and counts of the finest level, and that is far less than a rank's rows."""
    longest = LEVELS[0] * (DIM + 1) + 2
    assert all(rank["most_sent"] <= longest < 400 * DIM for rank in outcome.ranks)


def test_every_rank_knows_every_leaf(outcome: Outcome) -> None:
    alone = hierarchical_kmeans(outcome.features, LEVELS, seed=3)
    for rank in outcome.ranks:
        assert torch.equal(rank["by_order"], alone.leaves)
        dealt = PrototypeTree.from_tensors(rank["dealt"])
        same(dealt, hierarchical_kmeans(outcome.features, LEVELS))  # whichever rank held a row
        assert torch.equal(rank["by_index"], dealt.leaves)
        padded = PrototypeTree.from_tensors(rank["padded"])
        assert torch.equal(padded.leaves, padded.assign(outcome.features))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("bad row", "rank 1: row 2 of features is not finite (NaN, infinite or too large for float32)"),
        ("other width", "features must have the same number of columns on every rank, not [3, 32]"),
        ("too many clusters", "2001 clusters of only 2000 rows"),
        ("image left out", "index leaves out image 1 of"),
        ("index on one rank wrong", "index is -1, but must be 0 or more"),
    ],
)
def test_a_fault_on_one_rank_ends_all(outcome: Outcome, what: str, message: str) -> None:
    for rank in outcome.ranks:
        assert message in rank[what]
