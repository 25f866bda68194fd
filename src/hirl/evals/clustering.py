"""Clustering evaluation: K-means with as many clusters as classes, and how well they are the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hirl.evals.agreement import cells
from hirl.evals.base import Evaluation, Part, Result, Row, Subject, labels_of_part, level_names
from hirl.hierarchy.kmeans import hierarchical_kmeans


def clustering_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """The share of images (N,) told right when each cluster stands for one class, by the best such matching."""
    from scipy.optimize import linear_sum_assignment

    found = cells(clusters, labels)
    table = torch.zeros(int(clusters.max()) + 1, int(labels.max()) + 1, dtype=torch.int64)
    table[found.node, found.label] = found.images
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return int(table[rows, columns].sum()) / len(labels)


def mutual_information(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """NMI, and AMI, which is 0 by chance however many clusters there are; both 1 where they tell the same."""
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

    if len(cells(clusters, labels).images) == len(clusters.unique()) == len(labels.unique()):
        return {"NMI": 1.0, "AMI": 1.0}  # the same but for their names; logarithms would miss 1 by their last digit
    two = labels.cpu().numpy(), clusters.cpu().numpy()
    return {"NMI": float(normalized_mutual_info_score(*two)), "AMI": float(adjusted_mutual_info_score(*two))}


@dataclass(frozen=True, kw_only=True)
class Clustering(Evaluation):
    """The paper's clustering protocol: K-means over the test images, K the number of classes, at every label level.

    Args:
        restarts: The best of so many starts is taken, by the distance to the cluster centres.
        iterations: Steps of each at most.
        spherical: Centres are kept at unit length, as features are; False: plain means.
        part: The images that are clustered.
    """

    name: ClassVar[str] = "clustering"
    restarts: int = 5
    iterations: int = 50
    spherical: bool = True
    part: Part = "test"

    def run(self, subject: Subject) -> Result:
        images = subject.test if self.part == "test" else subject.train
        labels = labels_of_part(images)
        features = subject.features(self.part)
        rows: list[Row] = []
        headline: dict[str, float] = {}
        for level, name in enumerate(level_names(images)):
            classes = len(images.label_names[level])
            subject.tell("clustering", level, labels.shape[1])
            tree = hierarchical_kmeans(
                features,
                (classes,),
                seed=subject.seed,
                iterations=self.iterations,
                restarts=self.restarts,
                spherical=self.spherical,
            )
            truth = labels[:, level]
            figures = {"accuracy": clustering_accuracy(tree.leaves, truth)} | mutual_information(tree.leaves, truth)
            rows.append({"labels": name, "clusters": classes} | figures)
            headline |= {f"{figure}, {name}": value for figure, value in figures.items()}
        subject.tell("clustering", labels.shape[1], labels.shape[1])
        return Result(headline=headline, rows=rows)
