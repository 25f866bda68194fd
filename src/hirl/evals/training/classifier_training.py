"""Linear classifiers on an encoder: their training, with or without the encoder, and their predictions.

Randomness is a function of (seed, step) and, in the views, of (seed, epoch, sample): runs are reproducible to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.data.loader import Loader, grouped
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Batch
from hirl.encoders.backbones import has_tokens, tokens
from hirl.encoders.encoder_file import network_hash
from hirl.encoders.folding import fold_batch_norms
from hirl.evals.base import Subject
from hirl.evals.training.learning_rates import make_optimiser
from hirl.evals.training.regularisation import add_drop_paths, erase, mix_images
from hirl.evals.training.resumable import ResumableTraining
from hirl.evals.training.training_settings import TrainingSettings
from hirl.features.preprocessing import Preprocessing
from hirl.methods.parts import drop_path
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.processes import Precision, launch
from hirl.seeds import Stream, mix_seed

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Classifier(nn.Module):
    """Linear classifiers, one per label level and rate, on the subject's frozen encoder or on a copy that is trained.

    Without `settings.rates` there is one per level; with them, those of a level follow each other.
    """

    def __init__(self, subject: Subject, classes: Sequence[int], settings: TrainingSettings) -> None:
        super().__init__()
        self.frozen = settings.encoder_lr == 0
        encoder = subject.encoder
        self.encoder = fold_batch_norms(encoder) if self.frozen else copy.deepcopy(encoder).requires_grad_(True)
        self.mean_patch = settings.mean_patch and has_tokens(self.encoder)
        self.eval()
        blank = torch.zeros(1, subject.train.channels, subject.image_size, subject.image_size, device=subject.device)
        with torch.no_grad():
            width = self.features(blank).shape[1]
        each = max(1, len(settings.rates))
        self.heads = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, width, count) for count in classes for _ in range(each)
        )
        generator = torch.Generator().manual_seed(mix_seed(subject.seed, Stream.CLASSIFIER))
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


@dataclass(kw_only=True)
class ClassifierTraining(ResumableTraining[Batch]):
    kind: ClassVar[str] = "classifier"

    network: Classifier
    settings: TrainingSettings
    images: ImageSet
    targets: Tensor  # (N, label levels)
    subject: Subject
    task: str

    def __post_init__(self) -> None:
        self.bar = self.task
        self.seed, self.progress, self.message = self.subject.seed, self.subject.progress, self.subject.message
        self.check_parts(self.settings.batch_size)
        self.targets = self.targets.to(self.subject.device)  # once: a copy per batch would make a GPU wait
        self.loader = Loader(
            self.images,
            (self.settings.regularisation.view(self.subject.image_size),),
            batch_size=self.settings.batch_size // self.accumulate,
            seed=self.seed,
            workers=self.subject.workers,
            device=self.subject.device,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            mean=self.subject.normalisation.mean,
            std=self.subject.normalisation.std,
        )

    @property
    def trained(self) -> nn.Module:
        return self.network.heads if self.network.frozen else self.network

    @property
    def steps_per_epoch(self) -> int:
        return len(self.loader) // self.accumulate

    @property
    def steps(self) -> int:
        return self.settings.epochs * self.steps_per_epoch

    def make_optimiser(self) -> torch.optim.Optimizer:
        return make_optimiser(self.network.encoder, self.network.heads, self.settings)

    def share(self, step: int) -> float:
        return self.settings.share(step / self.steps_per_epoch)

    def batches(self, start: int, stop: int) -> Iterator[list[Batch]]:
        step = start
        while step < stop:
            epoch, done = divmod(step, self.steps_per_epoch)
            self.loader.set_epoch(epoch, done * self.accumulate)
            for parts in grouped(self.loader, self.accumulate):
                yield parts
                step += 1
                if step == stop or step % self.steps_per_epoch == 0:
                    break

    def losses(self, module: Any, piece: Batch, step: int, part: int) -> dict[str, Tensor]:
        """The cross-entropy of each classifier."""
        settings, images = self.settings.regularisation, piece.views[0]
        truth = self.targets[piece.index]  # (B, label levels)
        epoch = step // self.steps_per_epoch
        images = erase(images, settings.erasing, seed=self.seed, epoch=epoch, index=piece.index)
        mixed: Tensor | None = None
        if settings.mixes:
            assert len(self.network.heads) == 1  # a mixture is that of one label level
            first = (part * self.fabric.world_size + self.fabric.global_rank) * len(piece)
            classes = len(self.network.heads[0].bias)  # type: ignore[arg-type]
            images, mixed = mix_images(images, truth[:, 0], classes, settings, seed=self.seed, step=step, first=first)
        drop_path.draw(self.network.drop_paths, 1, len(piece), images.device)
        logits = module(images)
        each = len(logits) // truth.shape[1]  # classifiers per label level
        return {
            f"loss {head}": F.cross_entropy(rows, mixed)
            if mixed is not None
            else F.cross_entropy(rows, truth[:, head // each], label_smoothing=settings.label_smoothing)
            for head, rows in enumerate(logits)
        }

    def is_finite(self, losses: Mapping[str, Tensor]) -> Tensor:
        """With several rates one finite loss is enough: some are too high for any encoder."""
        finite = torch.stack(list(losses.values())).isfinite()
        return finite.any() if self.settings.rates else finite.all()

    def divergence_message(self, step: int, losses: Mapping[str, Tensor]) -> str:  # noqa: ARG002
        rates = self.settings.rates or (self.settings.classifier_lr,)
        return (
            f"{self.task} diverged in epoch {step // self.steps_per_epoch + 1} of {self.settings.epochs} at a peak "
            f"rate of {self.settings.encoder_lr:g} for the encoder and {min(rates):g} for the classifier: "
            "choose lower ones"
        )


@dataclass(frozen=True)
class Supervision:
    """How classifiers are trained besides their settings: precision, batches in parts, checkpoints."""

    subject: Subject
    settings: TrainingSettings
    task: str
    precision: Precision = "32-true"
    accumulate: int = 1

    def learn(self, classifier: Classifier, images: ImageSet, targets: Tensor) -> None:
        """Train on random crops and flips of the images; `targets` is (N, label levels).

        Continues from the checkpoint in the subject's folder, if there is one.
        """
        subject = self.subject
        name = "-".join("".join(letter if letter.isalnum() or letter == "." else " " for letter in self.task).split())
        about: list[Any] = [asdict(self.settings), self.precision, subject.seed, subject.image_size, len(images)]
        about += [asdict(subject.normalisation), targets.sum(0).tolist()]
        identity = network_hash(classifier.state_dict(), *about)
        if not classifier.frozen:
            synchronise_batch_norm(classifier.encoder)
        ClassifierTraining(
            fabric=self.fabric(),
            network=classifier,
            settings=self.settings,
            images=images,
            targets=targets,
            subject=subject,
            task=self.task,
            identity=identity,
            checkpoint=None if subject.folder is None else subject.folder / f"{name}.ckpt",
            accumulate=self.accumulate,
        ).fit()

    @torch.no_grad()
    def predict(self, classifier: Classifier, images: ImageSet) -> tuple[Tensor, Tensor]:
        """The classifiers' predictions for centre-cropped images, (n, heads), and the indices of the images, (n,).

        Images that cannot be read are left out. Each process takes its share and gets all predictions.
        """
        fabric, subject, crops = self.fabric(), self.subject, self.settings.regularisation
        resize = subject.interpolation if crops.interpolation == "bilinear" else crops.interpolation
        preprocessing = Preprocessing(
            subject.image_size, subject.normalisation, subject.device, subject.workers, resize
        )
        loader = preprocessing.loader(images, rank=fabric.global_rank, world_size=fabric.world_size)
        classifier.eval()
        mine: list[tuple[Tensor, Tensor]] = []
        for done, batch in enumerate(loader):
            with fabric.autocast():
                logits = classifier(batch.views[0])
            found = torch.stack([rows.argmax(1) for rows in logits], dim=1).cpu()
            mine.append((found[batch.readable], batch.index.cpu()[batch.readable]))
            subject.progress(f"{self.task}: test", done + 1, len(loader))
        every = [part for parts in ranks.world().gather_objects(mine) for part in parts]
        index = torch.cat([part[1] for part in every])
        order = index.argsort()
        return torch.cat([part[0] for part in every])[order], index[order]

    def fabric(self) -> Fabric:
        return launch(str(self.subject.device), precision=self.precision)
