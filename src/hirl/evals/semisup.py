"""Semi-supervised learning: fine-tuning on a small, class-balanced share of the labelled images.

The choice of images is a function of labels, share and seed, not of the encoder: both arms learn from the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hirl.data.sources.image_set import ImageSet, Subset
from hirl.evals.base import Part, Result, Row, Subject
from hirl.evals.finetune import FineTune, transformer_width
from hirl.evals.labels import check_level, labels_of_part
from hirl.evals.training.sampling import class_balanced, find_listed
from hirl.evals.training.training_settings import SEMI_CNN, SEMI_VIT, nearest_share, semi_vit
from hirl.files import expanded
from hirl.terminal.figures import Figure


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(FineTune):
    """Accuracy after the last epoch of training on each share of the training images.

    Rates and batch size are those published for 1 % or 10 % of ImageNet, whichever is nearer in the number of images:
    few images make few steps, and 10 %'s rates are too low for them. If there are too few for the published batch, the
    batch used is printed. Beside the arguments of `FineTune`:

    Args:
        shares: Shares of the training images, with the same number of images per class.
        files: The images to learn from instead: file names, or a text file with one per line (ImageNet's usual
            subsets).
    """

    name: ClassVar[str] = "semisup"
    revision: ClassVar[int] = 3  # 2: settings follow the number of images, no longer their share; 3: drop path the size
    shares: tuple[float, ...] = (0.01, 0.1)
    files: str | list[str] | None = None

    def check(self, parts: Mapping[Part, ImageSet]) -> None:
        check_level(self.level, parts["train"])
        for picked in self._picked(parts["train"], seed=0).values():
            labels_of_part(Subset(parts["train"], picked))  # a ValueError if a class has no image
            for official in (SEMI_CNN, SEMI_VIT):  # which of them is known with the encoder
                self._apply_arguments(official[nearest_share(len(picked))], len(picked))

    @property
    def arguments(self) -> dict[str, Any]:
        """A file of names by its content, which may change."""
        if not isinstance(self.files, str):
            return super().arguments
        content = hashlib.sha256("\n".join(_names(self.files)).encode()).hexdigest()
        return super().arguments | {"files": f"sha256 {content[:12]}"}

    def run(self, subject: Subject) -> Result:
        family = self._family(subject)
        headline: dict[str, Figure] = {}
        rows: list[Row] = []
        chosen = {}
        for share, picked in self._picked(subject.train, seed=subject.seed).items():
            images = Subset(subject.train, picked)
            nearest = nearest_share(len(images))
            name = _share_name(share, len(images), len(subject.train))
            task = f"{self.name} {name}"
            official = SEMI_CNN[nearest] if family == "cnn" else semi_vit(nearest, transformer_width(subject))
            settings = self._settings_for(official, len(images), subject, task=task)
            found = self._fine_tune(subject, images, settings, task=task)
            headline |= {f"{name}, {row['labels']}": row["accuracy"] for row in found}
            rows += [{"share": name, "images": len(images)} | dict(row) for row in found]
            chosen[name] = settings.effective | {"images": len(images), "settings_of_share": nearest}
        return Result(headline, rows, chosen)

    def _picked(self, train: ImageSet, *, seed: int) -> dict[float, Tensor]:
        """The indices of the images of each share."""
        labels = labels_of_part(train)
        if self.files is not None:
            indices = find_listed(train, _names(self.files))
            return {len(indices) / len(train): indices}
        if not self.shares:
            raise ValueError("semisup.shares is empty, but must hold at least one share, e.g. 0.01")
        names = train.label_names[0]
        return {share: class_balanced(labels[:, 0], share, seed=seed, names=names) for share in self.shares}


def _share_name(share: float, images: int, N: int) -> str:
    """A share in tables; with the real one if one image per class is much more."""
    near = share / 1.5 <= images / N <= share * 1.5
    asked = f"{100 * share:.4g} %"
    return asked if near else f"{asked}, at least one per class: {images:,} images = {100 * images / N:.2g} %"


def _names(files: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(files, str):
        return files
    path = expanded(files)
    if not path.is_file():
        raise ValueError(f"semisup.files is {files!r}, which is not a file: name a text file with one image per line")
    return path.read_text(encoding="utf-8").splitlines()
