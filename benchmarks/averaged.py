"""Evaluations of the study from a strong start: means over several K-means and trees, as one of each is noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean
from typing import ClassVar

import torch

from hirl.evals.base import Evaluation, Needs, Result, Row, Subject
from hirl.evals.clustering import Clustering
from hirl.evals.labels import labels_of, level_names
from hirl.hierarchy.builder import POOLED_FEATURES
from hirl.metrics.agreement import mutual_information
from hirl.seeds import mix_seed
from hirl.terminal.figures import share
from hirl.terminal.progress import no_progress


@dataclass(frozen=True, kw_only=True)
class Clusterings(Clustering):
    """The paper's clustering protocol, repeated with other random starts: mean figures."""

    name: ClassVar[str] = "clusterings"
    repeats: int = 10

    def run(self, subject: Subject) -> Result:
        found: list[Result] = []
        for number in range(self.repeats):
            subject.progress(self.name, number, self.repeats)
            found.append(
                Clustering.run(self, replace(subject, seed=mix_seed(subject.seed, number), progress=no_progress))
            )
        subject.progress(self.name, self.repeats, self.repeats)
        means = {figure: share(mean(one.headline[figure] for one in found)) for figure in found[0].headline}
        return Result(
            headline=means, rows=[{"start": n} | dict(row) for n, one in enumerate(found) for row in one.rows]
        )


@dataclass(frozen=True, kw_only=True)
class TreesLikeLabels(Evaluation):
    """Trees with as many nodes per level as there are classes, with the test images assigned to them: their mean AMI.

    Each tree is built over a random part of the training images, by the builder for pooled features.
    """

    name: ClassVar[str] = "trees like labels"
    trees: int = 5
    part: float = 0.8

    @property
    def needs(self) -> Needs:
        return Needs(labels=True)

    def run(self, subject: Subject) -> Result:
        train_labels, labels = labels_of(subject)
        classes = [len(of_level.unique()) for of_level in train_labels.T]  # fine → coarse
        train, test = subject.features("train"), subject.features("test")
        rows: list[Row] = []
        for number in range(self.trees):
            subject.progress(self.name, number, self.trees)
            generator = torch.Generator().manual_seed(mix_seed(subject.seed, number))
            some = torch.randperm(len(train), generator=generator)[: int(self.part * len(train))].sort().values
            tree = POOLED_FEATURES(train[some], (2 * classes[0], *classes), seed=subject.seed)
            nodes = tree.paths[tree.assign(test)][:, 1:]  # (N, levels); the leaves only make the tree finer
            for name, of_level, truth in zip(level_names(subject.test), nodes.T, labels.T, strict=True):
                rows.append({"tree": number, "labels": name, "AMI": share(mutual_information(of_level, truth)["AMI"])})
        subject.progress(self.name, self.trees, self.trees)
        names = dict.fromkeys(row["labels"] for row in rows)
        means = {name: mean(float(row["AMI"]) for row in rows if row["labels"] == name) for name in names}
        return Result(headline={f"AMI, {name}": share(value) for name, value in means.items()}, rows=rows)
