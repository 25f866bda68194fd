"""Clustering: K-means with as many clusters as classes, compared with the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Evaluation, Needs, Part, Result, Row, Subject
from hirl.evals.labels import labels_of_part, level_names
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.metrics.agreement import clustering_accuracy, majority_share, mutual_information
from hirl.terminal.figures import Figure, share


@dataclass(frozen=True, kw_only=True)
class Clustering(Evaluation):
    """The paper's clustering protocol: K-means over the test images, K the number of classes, at every label level.

    Args:
        restarts: Starts of K-means; the one with the smallest distance to the cluster centres is taken.
        iterations: Most iterations per start.
        spherical: Keep the centres at unit length, as features are; False for plain means.
        part: The images to cluster.
    """

    name: ClassVar[str] = "clustering"
    restarts: int = 5
    iterations: int = 50
    spherical: bool = True
    part: Part = "test"

    @property
    def needs(self) -> Needs:
        return Needs(labels=True, train=self.part == "train")

    def run(self, subject: Subject) -> Result:
        images: ImageSet = subject.parts[self.part]
        labels = labels_of_part(images)
        features = subject.features(self.part).to(subject.device)
        build = HierarchicalKMeans(restarts=self.restarts, iterations=self.iterations, spherical=self.spherical)
        rows: list[Row] = []
        headline: dict[str, Figure] = {}
        for level, name in enumerate(level_names(images)):
            classes = len(images.label_names[level])
            subject.progress("clustering", level, labels.shape[1])
            clusters = build(features, (classes,), seed=subject.seed).leaves.cpu()
            truth = labels[:, level]
            found = {"accuracy": clustering_accuracy(clusters, truth)} | mutual_information(clusters, truth)
            figures = {figure: share(value) for figure, value in found.items()}
            majority = {"majority": share(majority_share(truth))}
            rows.append({"labels": name, "clusters": classes} | figures | majority)
            headline |= {f"{figure}, {name}": value for figure, value in figures.items()}
        subject.progress("clustering", labels.shape[1], labels.shape[1])
        return Result(headline=headline, rows=rows)
