"""KNN accuracy at every label level during training: a sign of whether the encoder learns at all."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.data.loader import EvaluationLoader
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.methods.base import Method, Plan
from hirl.metrics.knn import KS, knn_accuracy

QUERY_EVERY = 5  # every fifth image is a query, the others are the gallery
MOST_IMAGES = 10_000


class OnlineKnn:
    """Best-of-K accuracy of the encoder's features. The queries are held out from the gallery, not from training.

    It is comparable from epoch to epoch within a run; the accuracy to report comes from `hirl evaluate`.
    """

    def __init__(
        self,
        images: ImageSet,
        method: Method,
        plan: Plan,
        *,
        every: int,
        normalisation: Normalisation,
        device: torch.device,
    ) -> None:
        assert images.labels is not None
        # Every stride-th image, since folders come class by class; the loader deals them as to one of `stride` ranks.
        stride = -(-len(images) // MOST_IMAGES)
        self.loader = EvaluationLoader(
            images,
            size=plan.image_size,
            device=device,
            world_size=stride,
            mean=normalisation.mean,
            std=normalisation.std,
        )
        self.method, self.every, self.epochs = method, every, plan.epochs
        self.labels = images.labels[::stride]

    def __call__(self, epoch: int) -> dict[str, float]:
        """Return the accuracy per label level, or nothing in epochs that are not evaluated."""
        if (epoch + 1) % self.every and epoch + 1 < self.epochs:
            return {}
        features, labels = self._features(), self.labels
        query = torch.arange(len(features)) % QUERY_EVERY == 0
        gallery_size = int((~query).sum())
        ks = [k for k in KS if k <= gallery_size] or [gallery_size]
        accuracies = knn_accuracy(features[~query], labels[~query], features[query], labels[query], ks=ks).amax(0)
        return {f"knn_level_{level}": float(accuracy) for level, accuracy in enumerate(accuracies)}

    @torch.no_grad()
    def _features(self) -> Tensor:
        encoder = self.method.encoder
        training = encoder.training
        encoder.eval()
        features = torch.cat([encoder(batch.views[0]).float().cpu() for batch in self.loader])
        encoder.train(training)
        return features
