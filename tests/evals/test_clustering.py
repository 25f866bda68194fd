"""Clustering: accuracy against an exhaustive search, and the evaluation on separate clusters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import Tensor

from hirl.evals.base import Subject
from hirl.evals.clustering import Clustering
from hirl.metrics.agreement import clustering_accuracy, mutual_information


def exhaustive(clusters: Tensor, labels: Tensor, count: int) -> float:
    return max(float((torch.tensor(names)[clusters] == labels).double().mean()) for names in permutations(range(count)))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_accuracy_is_that_of_the_best_naming(count: int) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(count, (60,), generator=generator)
        noise = torch.rand(60, generator=generator) < 0.5
        clusters = torch.where(noise, torch.randint(count, (60,), generator=generator), (labels + 1) % count)
        assert clustering_accuracy(clusters, labels) == pytest.approx(exhaustive(clusters, labels, count), abs=1e-12)


def test_renamed_classes_are_perfect_and_drawn_ones_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(20, (4000,), generator=generator)
    renamed = torch.randperm(20, generator=generator)[labels]
    assert clustering_accuracy(renamed, labels) == 1
    assert mutual_information(renamed, labels) == {"NMI": 1.0, "AMI": 1.0}
    drawn = torch.randint(200, (4000,), generator=generator)
    found = mutual_information(drawn, labels)
    assert abs(found["AMI"]) < 0.01
    assert found["NMI"] > 0.1  # which is why AMI is there: many small clusters share information by chance


def test_more_clusters_than_classes_leave_some_unnamed() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    clusters = torch.tensor([0, 0, 2, 1, 1, 1])
    assert clustering_accuracy(clusters, labels) == 5 / 6


@pytest.mark.parametrize("spherical", [True, False])
def test_separate_clusters_are_found(spherical: bool, coloured_subject: Callable[..., Subject]) -> None:
    generator = torch.Generator().manual_seed(1)
    middle = torch.nn.functional.one_hot(torch.arange(4), 8).float() + torch.tensor([[1.0], [1], [0], [0]]) / 2
    features = middle[torch.arange(100) % 4] + 0.01 * torch.randn(100, 8, generator=generator)
    subject = coloured_subject(features=lambda _: features)
    result = Clustering(spherical=spherical).run(subject)
    assert [row["clusters"] for row in result.rows] == [4, 2]
    assert result.headline["accuracy, 4 classes"] == 1
    assert result.headline["AMI, 4 classes"] == 1
    assert Clustering(spherical=spherical).run(subject) == result


def test_it_clusters_the_part_that_is_asked_for(coloured_subject: Callable[..., Subject]) -> None:
    asked = []

    def features(part: str) -> Tensor:
        asked.append(part)
        return torch.randn(160 if part == "train" else 100, 8, generator=torch.Generator().manual_seed(0))

    for part in ("train", "test"):
        Clustering(part=part, restarts=1).run(coloured_subject(features=features))
    assert asked == ["train", "test"]


def test_features_are_clustered_on_the_subjects_device(coloured_subject: Callable[..., Subject]) -> None:
    """Without a GPU here: the device that the features are moved to is noted."""
    moved: list[torch.device] = []

    class Noted(Tensor):
        def to(self, device: torch.device) -> Tensor:  # type: ignore[override]
            moved.append(device)
            return self.as_subclass(Tensor)

    features = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    expected = Clustering(restarts=1).run(coloured_subject(features=lambda _: features))
    noted = coloured_subject(features=lambda _: features.as_subclass(Noted), device=torch.device("cuda"))
    assert Clustering(restarts=1).run(noted) == expected
    assert moved == [torch.device("cuda")]
