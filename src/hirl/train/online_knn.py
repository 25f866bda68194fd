"""Is it learning at all? KNN accuracy at every label level while training goes on."""

from __future__ import annotations

import torch
from torch import Tensor

from hirl.data.loader import EvaluationLoader
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.methods.base import Method, Plan
from hirl.metrics.knn import KS, knn_accuracy

HELD_OUT = 5  # every fifth image asks, the others answer
MOST = 10_000  # images looked at


class OnlineKnn:
    """The best-of-K accuracy of the encoder's features on images held out from the answering ones, not from training.

    A sign of life within a run, comparable from epoch to epoch; the figure for the table comes from `hirl evaluate`.
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
        apart = -(-len(images) // MOST)  # every so many-th image, for folders come class by class
        self.loader = EvaluationLoader(
            images,
            size=plan.image_size,
            device=device,
            world_size=apart,
            mean=normalisation.mean,
            std=normalisation.std,
        )
        self.method, self.every, self.epochs = method, every, plan.epochs
        self.labels = images.labels[::apart]

    def __call__(self, epoch: int) -> dict[str, float]:
        if (epoch + 1) % self.every and epoch + 1 < self.epochs:
            return {}
        features = self._features()
        labels = self.labels
        asks = torch.arange(len(features)) % HELD_OUT == 0
        answers = int((~asks).sum())
        ks = [k for k in KS if k <= answers] or [answers]
        found = knn_accuracy(features[~asks], labels[~asks], features[asks], labels[asks], ks=ks).amax(0)
        return {f"knn_level_{level}": float(accuracy) for level, accuracy in enumerate(found)}

    @torch.no_grad()
    def _features(self) -> Tensor:
        encoder = self.method.encoder
        training = encoder.training
        encoder.eval()
        features = torch.cat([encoder(batch.views[0]).float().cpu() for batch in self.loader])
        encoder.train(training)
        return features
