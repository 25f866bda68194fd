"""Learning from labels: linear classifiers on an encoder, frozen or trained with them, and their predictions.

Randomness is a function of (seed, step) and, in the views, of (seed, epoch, sample): runs are reproducible to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hirl.backbones import has_tokens, tokens
from hirl.data.loader import EvaluationLoader
from hirl.data.sources.image_set import ImageSet
from hirl.evals.base import Subject
from hirl.evals.processes import Precision, gathered, join_processes
from hirl.evals.regularisation import add_drop_paths
from hirl.evals.settings import TrainingSettings
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.seeds import mix_seed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CLASSIFIER = 0  # stream of random numbers


class Classifier(nn.Module):
    """Linear classifiers, one per label level and rate, on the subject's frozen encoder or on a copy that is trained.

    Without `settings.rates` there is one per level; with them, those of a level follow each other.
    """

    def __init__(self, subject: Subject, classes: Sequence[int], settings: TrainingSettings) -> None:
        super().__init__()
        self.frozen = settings.encoder_lr == 0
        self.encoder = subject.encoder if self.frozen else copy.deepcopy(subject.encoder).requires_grad_(True)
        self.mean_patch = settings.mean_patch and has_tokens(self.encoder)
        self.eval()
        blank = torch.zeros(1, subject.train.channels, subject.image_size, subject.image_size, device=subject.device)
        with torch.no_grad():
            width = self.features(blank).shape[1]
        each = max(1, len(settings.rates))
        self.heads = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, width, count) for count in classes for _ in range(each)
        )
        generator = torch.Generator().manual_seed(mix_seed(subject.seed, CLASSIFIER))
        for head in self.heads:
            assert isinstance(head, nn.Linear)
            nn.init.normal_(head.weight, std=settings.initial_std, generator=generator)
            nn.init.zeros_(head.bias)
        self.heads.to(subject.device)
        self.drop_paths = () if self.frozen else tuple(add_drop_paths(self.encoder, settings.regularisation.drop_path))

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
        """Per head the logits (B, classes)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.features(images)
        return [head(features) for head in self.heads]


@dataclass(frozen=True)
class Supervision:
    """One training of classifiers and what becomes of it: how it is run, beside its settings."""

    subject: Subject
    settings: TrainingSettings
    task: str
    precision: Precision = "32-true"
    accumulate: int = 1

    def learn(self, classifier: Classifier, images: ImageSet, targets: Tensor) -> None:
        """Train on random crops and flips of the images; `targets` is (N, label levels).

        Continues from the checkpoint in the subject's folder, if there is one.
        """
        from hirl.evals.classifier_training import ClassifierTraining
        from hirl.runs.encoder_file import network_hash

        subject = self.subject
        fabric = self.fabric()
        about: list[Any] = [asdict(self.settings), self.precision, subject.seed, subject.image_size, len(images)]
        about += [asdict(subject.normalisation), targets.sum(0).tolist()]
        identity = network_hash(classifier.state_dict(), *about)
        if not classifier.frozen:
            synchronise_batch_norm(classifier.encoder)
        ClassifierTraining(
            fabric=fabric,
            classifier=classifier,
            settings=self.settings,
            images=images,
            targets=targets,
            subject=subject,
            task=self.task,
            identity=identity,
            checkpoint=self._checkpoint(),
            accumulate=self.accumulate,
        ).fit()

    @torch.no_grad()
    def predict(self, classifier: Classifier, images: ImageSet) -> tuple[Tensor, Tensor]:
        """The classifiers' predictions for centre-cropped images, (n, heads), and the indices of the images, (n,).

        Images that cannot be read are left out. Each process takes its share and gets all predictions.
        """
        fabric = self.fabric()
        loader = self._test_loader(images, fabric)
        classifier.eval()
        mine: list[tuple[Tensor, Tensor]] = []
        for done, batch in enumerate(loader):
            with fabric.autocast():
                logits = classifier(batch.views[0])
            found = torch.stack([rows.argmax(1) for rows in logits], dim=1).cpu()
            mine.append((found[batch.readable], batch.index.cpu()[batch.readable]))
            self.subject.progress(f"{self.task}: test", done + 1, len(loader))
        every = [part for parts in gathered(mine) for part in parts]
        index = torch.cat([part[1] for part in every])
        order = index.argsort()
        return torch.cat([part[0] for part in every])[order], index[order]

    def _test_loader(self, images: ImageSet, fabric: Fabric) -> EvaluationLoader:
        subject, crops = self.subject, self.settings.regularisation
        return EvaluationLoader(
            images,
            size=subject.image_size,
            interpolation=subject.interpolation if crops.interpolation == "bilinear" else crops.interpolation,
            workers=subject.workers,
            device=subject.device,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            mean=subject.normalisation.mean,
            std=subject.normalisation.std,
        )

    def fabric(self) -> Fabric:
        return join_processes(self.subject.device, self.precision)

    def _checkpoint(self) -> Path | None:
        name = "-".join("".join(letter if letter.isalnum() or letter == "." else " " for letter in self.task).split())
        return None if self.subject.folder is None else self.subject.folder / f"{name}.ckpt"
