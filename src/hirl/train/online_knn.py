"""KNN accuracy at every label level during training, which shows whether the encoder learns at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hirl.data.loader import EvaluationLoader
from hirl.data.sources import in_memory, open_images
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.splits import NoSplit, usual_name
from hirl.data.views.render import is_batched
from hirl.features.forward_pass import collected_outputs
from hirl.features.view_cache import CachedFeatureLoader, compute_or_load_views
from hirl.methods.base import Method
from hirl.metrics.agreement import majority_share
from hirl.metrics.knn import QUERY_EVERY, best_accuracy, held_out_accuracy
from hirl.runs.metrics import KNN_TRAIN, KNN_VAL, MAJORITY_TRAIN, MAJORITY_VAL
from hirl.terminal.progress import progress_bars
from hirl.train.feature_loader import FeatureLoader
from hirl.train.job import Job
from hirl.train.setup import Components

MOST_IMAGES = 10_000  # of the gallery and the queries together
MOST_VAL = MOST_IMAGES // QUERY_EVERY


@dataclass(frozen=True)
class KnnAccuracy:
    """Accuracy per label level, the finest first, beside the share of the largest class among the queries."""

    part: str  # "val", or "train" for held-out training images
    accuracies: list[float]
    majorities: list[float]

    def figures(self) -> dict[str, float]:
        """The figures by their names in metrics.jsonl."""
        knn, majority = (KNN_VAL, MAJORITY_VAL) if self.part == "val" else (KNN_TRAIN, MAJORITY_TRAIN)
        found = {knn.at(level): accuracy for level, accuracy in enumerate(self.accuracies)}
        return found | {majority.at(level): share for level, share in enumerate(self.majorities)}

    def __str__(self) -> str:
        queries = "val images" if self.part == "val" else "a fifth of the training images"
        levels = zip(self.accuracies, self.majorities, strict=True)
        shown = ", ".join(
            f"level {level} {accuracy:.1%} (majority class {majority:.1%})"
            for level, (accuracy, majority) in enumerate(levels)
        )
        return f"KNN on {queries}: {shown}"


@dataclass
class OnlineKnn:
    """Best-of-K accuracy of the encoder's features, on the val split of the data or else on some training images.

    Training images that serve as queries are held out from the gallery, not from training: that accuracy is comparable
    from epoch to epoch within a run only. The accuracy to report comes from `hirl evaluate`.
    """

    method: Method
    images: ImageSet
    loader: EvaluationLoader | CachedFeatureLoader
    val: ImageSet | None
    val_loader: EvaluationLoader | CachedFeatureLoader | None
    every: int  # epochs
    epochs: int

    def __call__(self, epoch: int) -> KnnAccuracy | None:
        """Return the accuracies, or None in epochs that are not evaluated."""
        if (epoch + 1) % self.every and epoch + 1 < self.epochs:
            return None
        if self.val is None or self.val_loader is None:
            accuracies, truth = held_out_accuracy(*self._features(self.loader, self.images, MOST_IMAGES))
        else:
            gallery = self._features(self.loader, self.images, MOST_IMAGES - MOST_VAL)
            queries, truth = self._features(self.val_loader, self.val, MOST_VAL)
            accuracies = best_accuracy(*gallery, queries, truth)
        majorities = [majority_share(truth[:, level]) for level in range(truth.shape[1])]
        return KnnAccuracy("train" if self.val is None else "val", accuracies.tolist(), majorities)

    def _features(
        self, loader: EvaluationLoader | CachedFeatureLoader, images: ImageSet, most: int
    ) -> tuple[Tensor, Tensor]:
        """Features (n, width) and labels (n, levels) of some readable images, spread over the set as classes are."""
        assert images.labels is not None
        spread = np.arange(0, len(images), -(-len(images) // most))
        index, features = collected_outputs(self.method.encoder, loader.batches(spread))
        return features, images.labels[index]


def open_val(data: Any, split: str | None, images: ImageSet) -> ImageSet | None:
    """The val split of the data that `images`, their training split, come from; None if there is none to compare with.

    It must be labelled with the same classes. Images that were opened already have no other split, and without a
    training split the val split is what the run is trained on.
    """
    if isinstance(data, ImageSet) or (split is not None and usual_name(split) != "train"):
        return None
    try:
        val = in_memory(open_images(data, split="val", channels=images.channels))
    except (NoSplit, FileNotFoundError):  # the val split of a downloaded set may not be there
        return None
    same = val.label_names == images.label_names and val.path(0) != images.path(0)
    return val if val.labels is not None and same else None


def open_online_knn(job: Job, components: Components, every: int) -> OnlineKnn | None:
    """KNN of the run every so many epochs, on the val split of its data if there is one; None without labels."""
    images, workers, size = job.data.images, job.data.workers, job.settings.image_size
    normal, device = components.loader.normalisation, job.fabric.device
    if not every or images.labels is None:
        return None

    def open_loader(some: ImageSet) -> EvaluationLoader | CachedFeatureLoader:
        mean, std = normal.mean, normal.std
        if not isinstance(components.loader, FeatureLoader):
            # `workers` was given for the training images; the val images may be stored differently.
            own = None if is_batched(some) else workers
            return EvaluationLoader(some, size=size, workers=own, mean=mean, std=std, device=device)
        cached = components.loader.cached
        if some is not images:
            assert job.start is not None
            network, sha256 = job.start.encoder.network, job.start.encoder.sha256
            with progress_bars() as progress:
                cached = compute_or_load_views(
                    network, sha256, some, None, 0,
                    size=size, mean=mean, std=std, device=device, workers=workers, progress=progress,
                )  # fmt: skip
        return CachedFeatureLoader(cached, device=device)

    val, loader = open_val(job.data.opened.data, job.settings.split, images), open_loader(images)
    val_loader = None if val is None else open_loader(val)
    return OnlineKnn(components.method, images, loader, val, val_loader, every, components.plan.epochs)
