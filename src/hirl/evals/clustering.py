"""Clustering evaluation: K-means with as many clusters as classes, and how well they are the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hirl.evals.base import Evaluation, Part, Result, Row, Subject, labels_of_part, level_names
from hirl.hierarchy.builder import hierarchical_kmeans
from hirl.metrics.clustering import clustering_accuracy, mutual_information


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
            subject.progress("clustering", level, labels.shape[1])
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
        subject.progress("clustering", labels.shape[1], labels.shape[1])
        return Result(headline=headline, rows=rows)
