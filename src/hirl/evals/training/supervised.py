"""Learning from labels: one training of linear classifiers on an encoder, and their predictions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hirl import ranks
from hirl.data.sources.image_set import ImageSet
from hirl.encoders.encoder_file import network_hash
from hirl.evals.base import Subject
from hirl.evals.training.classifier_training import Classifier, ClassifierTraining
from hirl.evals.training.training_settings import TrainingSettings
from hirl.features.preprocessing import Preprocessing
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.processes import Precision, launch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
