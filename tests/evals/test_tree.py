"""Agreement of trees with labels: exactly 1 where they are the same, chance where shuffled, and brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kendalltau
from torch import Tensor

from hirl import PrototypeTree
from hirl.data.sources.arrays import ArrayImages
from hirl.evals import tree as tree_evaluation
from hirl.evals.base import Subject
from hirl.evals.tree import FLAT, OWN, REBUILT, TREE, WARD, TreeAgreement
from hirl.hierarchy.builder import HierarchicalKMeans, TreeBuilder
from hirl.metrics.agreement import (
    dendrogram_purity,
    height_table,
    is_nested,
    mutual_information,
    purity,
    rank_correlation,
)
from hirl.metrics.neighbours import nearest_rows


def label_tree(count: int) -> Tensor:
    """(count · 12, 3): twelve classes within six within two, of uneven sizes."""
    fine = torch.cat([torch.full((count + number,), number) for number in range(12)])
    return torch.stack([fine, fine // 2, fine // 6], dim=1)


def random_paths(N: int, levels: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(levels[0], (N,), generator=generator)]
    for size in levels[1:]:
        parents = torch.randint(size, (int(columns[-1].max()) + 1,), generator=generator)
        columns.append(parents[columns[-1]])
    return torch.stack(columns, dim=1)


def height(a: Tensor, b: Tensor) -> int:
    """The lowest level at which two paths meet; their number of levels where only the root holds both."""
    return next((level for level in range(len(a)) if a[level] == b[level]), len(a))


def test_a_perfect_tree_scores_exactly_one() -> None:
    labels = label_tree(9)
    renamed = [
        torch.randperm(int(column.max()) + 1, generator=torch.Generator().manual_seed(0))[column] for column in labels.T
    ]
    paths = torch.stack(renamed, dim=1)
    for level in range(3):
        assert purity(paths[:, level], labels[:, level]) == 1
        assert mutual_information(paths[:, level], labels[:, level]) == {"NMI": 1.0, "AMI": 1.0}
        assert dendrogram_purity(paths, labels[:, level]) == 1
    assert rank_correlation(height_table(paths, labels)) == 1


def test_a_shuffled_tree_scores_by_chance() -> None:
    labels = label_tree(150)
    paths = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    for level in range(3):
        assert abs(mutual_information(paths[:, level], labels[:, level])["AMI"]) < 0.01
        share = (labels[:, level].bincount() / len(labels)).square().sum()  # of pairs, those of one class
        assert dendrogram_purity(paths, labels[:, level]) == pytest.approx(float(share), rel=0.03)
        assert purity(paths[:, level], labels[:, level]) < float(labels[:, level].bincount().max()) / len(labels) + 0.06
    assert abs(rank_correlation(height_table(paths, labels))) < 0.005


@pytest.mark.parametrize("levels", [(20, 6, 2), (5, 2), (3,), (40, 39)])
def test_dendrogram_purity_is_that_of_all_pairs(levels: tuple[int, ...]) -> None:
    paths, labels = random_paths(50, levels), label_tree(4)[:50]
    for level in range(3):
        truth = labels[:, level]
        shares = []
        for a, b in combinations(range(50), 2):
            if truth[a] == truth[b]:
                at = height(paths[a], paths[b])
                below = torch.ones(50, dtype=torch.bool) if at == len(levels) else paths[:, at] == paths[a, at]
                shares.append(float((truth[below] == truth[a]).double().mean()))
        assert dendrogram_purity(paths, truth) == pytest.approx(sum(shares) / len(shares), abs=1e-12)


@pytest.mark.parametrize("levels", [(20, 6, 2), (5,)])
def test_heights_are_those_of_all_pairs(levels: tuple[int, ...]) -> None:
    labels = label_tree(3)
    N = len(labels)
    noisy = torch.where(torch.rand(N, 1, generator=torch.Generator().manual_seed(1)) < 0.6, labels, labels.flip(0))
    paths = noisy if len(levels) == 3 else random_paths(N, levels)
    heights = [(height(paths[a], paths[b]), height(labels[a], labels[b])) for a, b in combinations(range(N), 2)]
    table = height_table(paths, labels)
    for a, row in enumerate(table):
        assert row == [heights.count((a, b)) for b in range(4)]
    expected = kendalltau(*zip(*heights, strict=True)).statistic
    assert rank_correlation(table) == pytest.approx(expected, abs=1e-12)


def test_pairs_of_pairs_beyond_a_float_stay_exact() -> None:
    huge = 10**12
    assert rank_correlation([[huge, 0], [0, huge + 1]]) == 1
    assert rank_correlation([[0, huge], [huge, 0]]) == -1
    assert rank_correlation([[huge, huge]]) == 0  # a tree of one node carries no information


def test_nested_or_not() -> None:
    assert is_nested(label_tree(2))
    assert not is_nested(torch.tensor([[0, 0], [0, 1], [1, 1]]))


def test_a_class_of_single_images_has_no_pairs() -> None:
    with pytest.raises(ValueError, match="no class has two images"):
        dendrogram_purity(torch.zeros(3, 1, dtype=torch.int64), torch.arange(3))


def grown(count: int, seed: int, *, noise: float = 0.02) -> tuple[Tensor, Tensor]:
    """Features (N, 24) around a tree of directions, and its labels: 12 classes within 6 within 2."""
    labels = label_tree(count)
    codes = [F.one_hot(column, 12).float() * weight for column, weight in zip(labels.T, (0.5, 1.0, 2.0), strict=True)]
    generator = torch.Generator().manual_seed(seed)
    features = torch.cat(codes, dim=1)
    return features + noise * torch.randn(features.shape, generator=generator), labels


def grown_subject(make: Callable[..., Subject], **changes: Any) -> Subject:
    names = tuple(tuple(map(str, range(size))) for size in (12, 6, 2))
    made = {part: grown(count, seed) for part, count, seed in (("train", 12, 0), ("test", 8, 1))}
    parts = {
        part: ArrayImages(
            name=part, pixels=torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), labels=labels, label_names=names
        )
        for part, (_, labels) in made.items()
    }
    return make(features=lambda part: made[part][0], parts=parts, **changes)


def by(rows: list[Any], **wanted: Any) -> list[Any]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def test_a_tree_of_separate_features_agrees_with_their_labels(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    result = TreeAgreement(levels=(12, 6, 2), builder=HierarchicalKMeans(restarts=5)).run(subject)
    for level, name in enumerate(("12 classes", "6 classes", "2 classes")):
        assert result.headline[f"AMI, {name}"] == 1
        assert result.headline[f"dendrogram purity, {name}"] == 1
        assert result.chosen[f"level of AMI, {name}"] == level
        for source in (TREE, WARD, FLAT):
            (row,) = by(result.rows, tree=source, level=level, labels=name)
            assert row["AMI"] == row["purity"] == 1
            assert row["chance"] < 0.75
    assert result.headline["height correlation"] == 1
    assert {row["from"] for row in result.rows if "from" in row} == {"pooled features"}
    assert all(row["precision at 10"] == 1 and row["chance"] < 0.6 for row in result.rows if "from" in row)
    assert not by([row for row in result.rows if "dendrogram purity" in row], tree=FLAT)
    assert TreeAgreement(levels=(12, 6, 2), builder=HierarchicalKMeans(restarts=5)).run(subject) == result


def test_shuffled_labels_are_at_chance(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    for images in (subject.train, subject.test):
        assert images.labels is not None
        images.labels = images.labels[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    result = TreeAgreement(levels=(12, 6, 2)).run(subject)
    assert all(abs(row["AMI"]) < 0.05 for row in result.rows if "AMI" in row)
    assert all(abs(row["height correlation"]) < 0.05 for row in result.rows if "height correlation" in row)
    for row in result.rows:
        for figure in ("purity", "dendrogram purity", "precision at 10"):
            if figure in row:
                assert row[figure] == pytest.approx(row["chance"], abs=0.06)


def test_a_runs_own_tree_and_representations_are_judged_beside_the_common_tree(
    coloured_subject: Callable[..., Subject],
) -> None:
    fine, _ = grown(12, 0, noise=0.0)
    directions = F.normalize(fine.unique(dim=0), dim=1)  # (12, D)
    tree = PrototypeTree(
        prototypes=(directions, directions[:2]),
        parents=(torch.arange(12) % 2,),
        leaves=torch.zeros(5, dtype=torch.int64),
    )

    def representations(part: str) -> Tensor:
        z0 = grown(12 if part == "train" else 8, int(part == "test"))[0]
        drawn = torch.randn(z0.shape, generator=torch.Generator().manual_seed(7 + len(part)))
        return torch.stack((z0, drawn), dim=1)

    subject = grown_subject(coloured_subject, tree=tree, representations=representations)
    result = TreeAgreement(levels=(24, 6)).run(subject)
    assert result.chosen["levels"] == [24, 6]
    assert result.chosen["levels, run's own"] == [12, 2]
    (row,) = by(result.rows, tree=OWN, level=0, labels="12 classes")
    assert row["AMI"] == result.headline["AMI, 12 classes, run's own"] == 1
    # What is compared between encoders does not depend on the run's own tree, nor on its z⁰.
    plain = TreeAgreement(levels=(24, 6)).run(grown_subject(coloured_subject))
    assert OWN not in {row.get("tree") for row in plain.rows}
    for source in (TREE, REBUILT, WARD, FLAT):
        assert by(result.rows, tree=source) == by(plain.rows, tree=source)
    assert all(result.headline[name] == value for name, value in plain.headline.items())
    assert all(row["precision at 10"] == 1 for row in by(result.rows, **{"from": "z0"}))
    for row in by(result.rows, **{"from": "z1"}):
        assert row["precision at 10"] == pytest.approx(row["chance"], abs=0.06)


class FirstRows(TreeBuilder):
    """Prototypes are the first rows, whatever the features."""

    def __call__(self, features: Any, levels: Sequence[int], **_: Any) -> PrototypeTree:
        rows = F.normalize(torch.as_tensor(features)[: levels[0]].float(), dim=1)
        parents = tuple(torch.arange(size) % above for size, above in pairwise(levels))
        empty = PrototypeTree(tuple(rows[:size] for size in levels), parents, torch.zeros(1, dtype=torch.int64))
        return replace(empty, leaves=empty.assign(features))


def test_another_builder_makes_the_tree_and_not_the_references(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    usual = TreeAgreement(levels=(12, 6, 2)).run(subject)
    other = TreeAgreement(levels=(12, 6, 2), builder=FirstRows()).run(subject)
    assert by(other.rows, tree=TREE) != by(usual.rows, tree=TREE)
    assert other.headline["AMI, 12 classes"] < 1
    assert by(other.rows, tree=FLAT, level=0, labels="2 classes")[0]["purity"] == 1


def test_the_references_share_one_sample(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    result = TreeAgreement(levels=(12, 6, 2), sample=60).run(subject)
    N = len(subject.train)
    counts = {(row["tree"], row["images"]) for row in result.rows if "AMI" in row}
    assert counts == {(TREE, N), (REBUILT, 60), (WARD, 60), (FLAT, 60)}
    other = TreeAgreement(levels=(12, 6, 2), sample=40).run(subject)
    assert by(other.rows, tree=TREE, level=0) == by(result.rows, tree=TREE, level=0)
    small = TreeAgreement(levels=(24, 6, 2), sample=40).run(subject)  # too small a sample for 24 nodes
    assert max(row["nodes"] for row in by(small.rows, tree=WARD, labels="2 classes") if "nodes" in row) < 24


def test_nodes_are_those_of_the_tree_and_its_copy_is_left_out(coloured_subject: Callable[..., Subject]) -> None:
    """With 60 nodes for few test images some nodes have none; a sample of all images gives the same tree again."""
    subject = grown_subject(coloured_subject)
    result = TreeAgreement(levels=(60, 6, 2)).run(subject)
    rows = by([row for row in result.rows if "AMI" in row], labels="2 classes")
    assert {row["tree"] for row in rows} == {TREE, WARD, FLAT}
    for source in (TREE, WARD, FLAT):
        assert [row["nodes"] for row in by(rows, tree=source)] == [60, 6, 2]
        assert by(rows, tree=source)[0]["with test images"] < 60


def test_retrieval_equals_a_slow_loop(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    subject.parts["train"].labels = subject.train.labels[torch.randperm(len(subject.train))]  # type: ignore[index]
    result = TreeAgreement(levels=(12, 6, 2), neighbours=7, sample=30).run(subject)
    train, test = subject.features("train"), subject.features("test")
    some = torch.randperm(len(test), generator=torch.Generator().manual_seed(subject.seed))[:30]
    truth, labels = subject.train.labels, subject.test.labels
    assert truth is not None
    assert labels is not None
    for level, name in enumerate(("12 classes", "6 classes", "2 classes")):
        near, all_of_class = [], []
        for query in some.tolist():
            order = sorted(
                range(len(train)), key=lambda row: -float(torch.cosine_similarity(train[row], test[query], 0))
            )
            same = [int(truth[row, level] == labels[query, level]) for row in order]
            near.append(sum(same[:7]) / 7)
            all_of_class.append(sum(same[: sum(same)]) / sum(same))
        (row,) = by(result.rows, **{"from": "pooled features"}, labels=name)
        assert row["precision at 7"] == pytest.approx(sum(near) / 30)
        assert row["R-precision"] == pytest.approx(sum(all_of_class) / 30)


def test_levels_that_are_not_nested_have_no_heights(coloured_subject: Callable[..., Subject]) -> None:
    subject = grown_subject(coloured_subject)
    for images in (subject.train, subject.test):
        assert images.labels is not None
        images.labels[:, 2] = torch.arange(len(images)) % 2
    result = TreeAgreement(levels=(12, 2)).run(subject)
    assert "height correlation" not in result.headline
    assert "not nested" in result.chosen["height correlation"]
    assert result.headline["AMI, 12 classes"] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 0}, "neighbours is 0"),
        ({"neighbours": 999}, "at most the 210 training images"),
        ({"sample": 3}, "sample is 3, but must be at least 4 images"),
        ({"levels": (3, 9)}, "must decrease"),
    ],
)
def test_impossible_arguments_are_refused(
    options: dict[str, Any], message: str, coloured_subject: Callable[..., Subject]
) -> None:
    with pytest.raises(ValueError, match=message):
        TreeAgreement(**options).run(grown_subject(coloured_subject))


def test_trees_are_built_and_searched_on_the_subjects_device(
    coloured_subject: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU here: the device that features are moved to, and that neighbours are compared on, is noted."""
    moved: list[torch.device] = []
    searched: list[torch.device] = []

    class Noted(Tensor):
        def to(self, device: torch.device) -> Tensor:  # type: ignore[override]
            moved.append(device)
            return self.as_subclass(Tensor)

    class NotedBuilder(HierarchicalKMeans):
        def __call__(self, features: Any, *arguments: Any, **options: Any) -> PrototypeTree:
            assert type(features) is Tensor  # moved
            return super().__call__(features, *arguments, **options)

    def noted_rows(rows: Tensor, queries: Tensor, k: int, *, device: torch.device) -> Any:
        searched.append(device)
        return nearest_rows(rows.as_subclass(Tensor), queries.as_subclass(Tensor), k)

    generator = torch.Generator().manual_seed(0)
    features = {"train": torch.randn(160, 8, generator=generator), "test": torch.randn(100, 8, generator=generator)}
    evaluation = TreeAgreement(levels=(12, 4), sample=120, builder=NotedBuilder())
    expected = evaluation.run(coloured_subject(features=features.__getitem__))
    monkeypatch.setattr(tree_evaluation, "nearest_rows", noted_rows)
    device = torch.device("cuda")
    noted = coloured_subject(features=lambda part: features[part].as_subclass(Noted), device=device)
    assert evaluation.run(noted) == expected
    assert moved == [device] * 3  # the training images, the sample of them, the test images
    assert searched == [device]
