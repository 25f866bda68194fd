"""Learning from labels: linear classifiers on an encoder, frozen or trained with them, and their predictions.

Randomness is a function of (seed, step) and, in the views, of (seed, epoch, sample): runs are reproducible to the bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.backbones import has_tokens, tokens
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources.image_set import ImageSet
from hirl.data.views import View
from hirl.evals.base import Subject
from hirl.evals.learning_rates import make_optimiser
from hirl.evals.settings import TrainingSettings
from hirl.seeds import mix_seed

SMALLEST_CROP = 0.08  # of the image's area, as in every official setting
INITIAL_STD = 0.01  # of the classifiers' weights
CLASSIFIER, FORWARD = range(2)  # independent streams of random numbers


class Classifier(nn.Module):
    """One linear classifier per label level, on the subject's frozen encoder or on a copy that is trained."""

    def __init__(self, subject: Subject, classes: Sequence[int], settings: TrainingSettings) -> None:
        super().__init__()
        self.frozen = settings.encoder_lr == 0
        self.encoder = subject.encoder if self.frozen else copy.deepcopy(subject.encoder).requires_grad_(True)
        self.mean_patch = settings.mean_patch and has_tokens(self.encoder)
        self.eval()
        blank = torch.zeros(1, subject.train.channels, subject.image_size, subject.image_size, device=subject.device)
        with torch.no_grad():
            width = self.features(blank).shape[1]
        self.heads = nn.ModuleList(nn.utils.skip_init(nn.Linear, width, count) for count in classes)
        generator = torch.Generator().manual_seed(mix_seed(subject.seed, CLASSIFIER))
        for head in self.heads:
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=INITIAL_STD, generator=generator)
            nn.init.zeros_(head.bias)
        self.heads.to(subject.device)

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode)
        self.encoder.train(mode and not self.frozen)  # or batch norm's statistics would change
        return self

    def features(self, images: Tensor) -> Tensor:
        """(B, width), or (B, 2 · width) with the mean patch token."""
        if self.mean_patch:
            pooled, patches = tokens(self.encoder, images)
            return torch.cat([pooled, patches.mean(1)], dim=1)
        return self.encoder(images)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Per level the logits (B, classes)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.features(images)
        return [head(features) for head in self.heads]


def learn(
    classifier: Classifier,
    images: ImageSet,
    targets: Tensor,
    settings: TrainingSettings,
    *,
    subject: Subject,
    task: str,
) -> None:
    """Train on random crops and flips of the images; `targets` is (N, heads)."""
    loader = Loader(
        images,
        (View(size=subject.image_size, scale=(SMALLEST_CROP, 1.0)),),
        batch_size=settings.batch_size,
        seed=subject.seed,
        workers=subject.workers,
        device=subject.device,
        mean=subject.normalisation.mean,
        std=subject.normalisation.std,
    )
    optimiser = make_optimiser(classifier.encoder, classifier.heads, settings)
    classifier.train()
    step, steps = 0, settings.epochs * len(loader)
    cards = [subject.device] if subject.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cards):
        for epoch in range(settings.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                torch.manual_seed(mix_seed(subject.seed, FORWARD, step))
                for group in optimiser.param_groups:
                    group["lr"] = group["peak"] * settings.share(step / len(loader))
                truth = targets[batch.index.cpu()].to(subject.device)  # (B, heads)
                logits = classifier(batch.views[0])
                loss = torch.stack([F.cross_entropy(rows, truth[:, n]) for n, rows in enumerate(logits)]).sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                step += 1
                subject.progress(task, step, steps)
            if not math.isfinite(loss.item()):
                raise ValueError(
                    f"{task} diverged in epoch {epoch + 1} of {settings.epochs} at a peak rate of "
                    f"{settings.encoder_lr:g} for the encoder and {settings.classifier_lr:g} for the classifier: "
                    "choose lower ones"
                )
    classifier.eval()


@torch.no_grad()
def predict(classifier: Classifier, images: ImageSet, *, subject: Subject, task: str) -> tuple[Tensor, Tensor]:
    """The classifiers' predictions for centre-cropped images, (n, heads), and the indices of the images, (n,).

    Images that cannot be read are left out.
    """
    loader = EvaluationLoader(
        images,
        size=subject.image_size,
        workers=subject.workers,
        device=subject.device,
        mean=subject.normalisation.mean,
        std=subject.normalisation.std,
    )
    classifier.eval()
    predictions, index = [], []
    for done, batch in enumerate(loader):
        found = torch.stack([logits.argmax(1) for logits in classifier(batch.views[0])], dim=1).cpu()
        predictions.append(found[batch.readable])
        index.append(batch.index.cpu()[batch.readable])
        subject.progress(f"{task}: test", done + 1, len(loader))
    return torch.cat(predictions), torch.cat(index)
