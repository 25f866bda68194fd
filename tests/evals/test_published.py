"""The table of published protocols in docs/evaluation.md: every value in its column "ours" is the code's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hirl.evals import KNN
from hirl.evals.finetune import Transfer
from hirl.evals.training.learning_rates import FINAL_NORMS, MOMENTUM, TRUST
from hirl.evals.training.regularisation import MIXED_TOGETHER, PUBLISHED, SMALLEST_CROP
from hirl.evals.training.training_settings import (
    FINE_TUNE_CNN,
    FINE_TUNE_VIT,
    LINEAR,
    SEMI_CNN,
    SEMI_VIT,
    TrainingSettings,
    fine_tune_vit,
)
from hirl.features.preprocessing import Preprocessing
from hirl.metrics.knn import KS

from ..small_methods import METHODS, title

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"


def optimiser(settings: TrainingSettings) -> str:
    return {"sgd": "SGD", "lars": "LARS", "adamw": "AdamW"}[settings.optimiser]


def schedule(settings: TrainingSettings) -> str:
    falls = " and ".join(f"{milestone:g}" for milestone in settings.milestones)
    return f"× {settings.factor:g} at {falls}" if falls else "cosine"


def length(settings: TrainingSettings) -> str:
    return f"batch {settings.batch_size}, {settings.epochs} epochs, {schedule(settings)}"


def linear(method: str) -> str:
    settings = LINEAR[method]
    per_256 = 256 / settings.batch_size
    rates = f"{settings.classifier_lr * per_256:g}"
    if settings.rates:
        swept = [rate * per_256 for rate in settings.rates]
        rates = f"{len(swept)} rates from {min(swept):g} to {max(swept):g}"
    tokens = ", [CLS] and mean patch token" if settings.mean_patch else ""
    return f"{optimiser(settings)} {rates} per 256, weight decay {settings.weight_decay:g}, {length(settings)}{tokens}"


def pair(settings: TrainingSettings) -> str:
    return f"{settings.encoder_lr:g} and {settings.classifier_lr:g}"


def by_size(width: int) -> str:
    settings = fine_tune_vit(width)
    changed = {name for name, value in vars(settings).items() if value != getattr(FINE_TUNE_VIT, name)}
    assert changed <= {"epochs", "warmup_epochs", "layer_decay", "regularisation"}
    assert settings.regularisation.changed(drop_path=PUBLISHED.drop_path) == PUBLISHED
    return (
        f"{settings.epochs} epochs, warm-up {settings.warmup_epochs:g}, layer decay {settings.layer_decay:g}, "
        f"drop path {settings.regularisation.drop_path:g}"
    )


def ours() -> dict[str, str]:
    """The setting's name → the code's value as text."""
    bicubic = ", ".join(title(name) for name, kind in METHODS.items() if kind.facts.interpolation == "bicubic")
    others = Preprocessing.__dataclass_fields__["interpolation"].default
    vit, cnn = FINE_TUNE_VIT, FINE_TUNE_CNN
    final = vit.final_share * vit.encoder_lr
    rows = {
        "KNN": f"best of K = {', '.join(map(str, KS))}; T = {KNN().temperature:g}",
        "test images: resizing": f"bicubic for {bicubic}; {others} for others",
        "training crops": f"{SMALLEST_CROP:g} to 1 of the area, flips",
    }
    rows |= {f"linear, {title(method)}": linear(method) for method in LINEAR}
    rows |= {
        "momentum; LARS's trust": f"{MOMENTUM:g}; {TRUST:g}",
        "fine-tuning, CNN": f"{optimiser(cnn)} {pair(cnn)}, weight decay {cnn.weight_decay:g}, {length(cnn)}",
        "fine-tuning, ViT-B": f"{optimiser(vit)} {vit.encoder_lr:g}, layer decay {vit.layer_decay:g}, "
        f"weight decay {vit.weight_decay:g}, {length(vit)}",
        "ViT: warm-up; final rate": f"{vit.warmup_epochs:g} epochs; {final:g}",
        "ViT: rate of the final norm": f"full ({', '.join(FINAL_NORMS)})",
        "ViT: initial classifier": f"standard deviation {vit.initial_std:g}",
        "ViT: drop path": f"{PUBLISHED.drop_path:g}",
        "fine-tuning, ViT-S": by_size(384),
        "fine-tuning, ViT-L": by_size(1024),
        "ViT: RandAugment": f"{PUBLISHED.rand_augment}",
        "ViT: random erasing": f"{PUBLISHED.erasing:g}, noise per pixel",
        "ViT: label smoothing": f"{PUBLISHED.label_smoothing:g}",
        "ViT: mixup; cutmix": f"{PUBLISHED.mixup:g}; {PUBLISHED.cutmix:g}",
        "ViT: images per mixture": f"{MIXED_TOGETHER}",
        "ViT: resizing": f"{PUBLISHED.interpolation}, in training and testing",
        "semi-supervised 1 %, CNN": f"{pair(SEMI_CNN[0.01])}, {length(SEMI_CNN[0.01])}",
        "semi-supervised 10 %, CNN": f"{pair(SEMI_CNN[0.1])}, {length(SEMI_CNN[0.1])}",
        "semi-supervised 1 %, ViT": f"{SEMI_VIT[0.01].encoder_lr:g}, {length(SEMI_VIT[0.01])}",
        "semi-supervised 10 %, ViT": f"{SEMI_VIT[0.1].encoder_lr:g}, {length(SEMI_VIT[0.1])}",
        "Places205": f"as {Transfer.__mro__[1].name}",  # type: ignore[attr-defined]
    }
    return rows


def documented() -> dict[str, list[str]]:
    """The rows of the table under "As published", by their first cell."""
    text = DOCS.read_text(encoding="utf-8").split("## As published")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows[2:] if len(row) == 4}


def test_every_row_is_there_with_the_codes_value() -> None:
    """A method may be shipped before its linear classification is in the table."""
    rows, values = documented(), ours()
    assert rows.keys() <= values.keys()
    assert all(name.startswith("linear, ") for name in values.keys() - rows.keys())
    for name, row in rows.items():
        assert row[2] == values[name], name


@pytest.mark.parametrize("name", list(documented()))
def test_a_row_is_the_same_or_says_why_not(name: str) -> None:
    _, published, own, verdict = documented()[name]
    assert published
    assert verdict == "same" or len(verdict) > 10
    assert (published == own) <= verdict.startswith("same")


def test_fine_tuning_has_no_setting_beside_those_of_the_table() -> None:
    """The rows on fine-tuning show all that differs from plain training, and one rate for all of a transformer."""
    shown = {"optimiser", "encoder_lr", "classifier_lr", "weight_decay", "batch_size", "epochs", "milestones", "factor"}
    only_vit = {"layer_decay", "warmup_epochs", "final_share", "initial_std", "regularisation"}
    plain = vars(TrainingSettings(classifier_lr=0.0, batch_size=1, epochs=1))
    for settings, rows in ((FINE_TUNE_CNN, shown), (FINE_TUNE_VIT, shown | only_vit)):
        changed = {name for name, value in vars(settings).items() if value != plain[name]}
        assert changed <= rows
    assert FINE_TUNE_VIT.classifier_lr == FINE_TUNE_VIT.encoder_lr


def test_semi_supervised_settings_share_those_of_fine_tuning() -> None:
    for settings in SEMI_VIT.values():
        assert settings.regularisation == FINE_TUNE_VIT.regularisation == PUBLISHED
        assert (settings.layer_decay, settings.weight_decay, settings.warmup_epochs) == (0.65, 0.05, 20)
