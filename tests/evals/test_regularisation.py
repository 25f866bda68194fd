"""Regularisation: timm's operations, drawn per image or step, whichever process and batch an image is in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from hirl.data import Loader, Shapes, View
from hirl.data.views.rand_augment import rand_augmented
from hirl.evals.base import Subject
from hirl.evals.finetune import FineTune
from hirl.evals.training import regularisation
from hirl.evals.training.classifier_training import Classifier, Supervision
from hirl.evals.training.regularisation import (
    PLAIN,
    PUBLISHED,
    Regularisation,
    add_drop_paths,
    erase,
    mix_images,
    smoothed,
)
from hirl.evals.training.training_settings import FINE_TUNE_VIT
from hirl.methods.parts.drop_path import DropPath
from hirl.seeds import Stream, mix_seed, seeded_globals

Make = Callable[..., Subject]
POLICY = "rand-m9-mstd0.5-inc1"


def test_global_generators_are_left_as_they_were() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    with seeded_globals(7):
        first = draws()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index] # noqa: NPY002
    with seeded_globals(7):
        assert draws() == first
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    assert torch.equal(states[2], torch.get_rng_state())


# --- RandAugment ---


@pytest.mark.parametrize("channels", [3, 1])
def test_rand_augment_is_timms(channels: int, generator: torch.Generator) -> None:
    crop = torch.randint(256, (channels, 24, 24), dtype=torch.uint8, generator=generator)
    view, mean = View(size=24, rand_augment=POLICY, interpolation="bicubic"), (0.5, 0.4, 0.3)[:channels]
    fill = tuple(round(255 * value) for value in mean) * (1 if channels == 3 else 3)
    details = {"translate_const": 10, "img_mean": fill, "interpolation": Image.Resampling.BICUBIC}
    theirs = rand_augment_transform(POLICY, details)
    picture = Image.fromarray(crop.expand(3, -1, -1).permute(1, 2, 0).numpy())
    changed = 0
    for seed in range(20):
        with seeded_globals(seed):
            expected = theirs(picture).convert("RGB" if channels == 3 else "L")
        found = rand_augmented(crop, view, mean, seed)
        assert found.dtype == torch.uint8
        pixels = torch.from_numpy(np.array(expected)).view(24, 24, channels).permute(2, 0, 1)
        assert torch.equal(found, pixels)
        changed += not torch.equal(found, crop)
    assert changed > 10


def test_the_greatest_posterisation_is_black(generator: torch.Generator) -> None:
    """Of nine in ten the magnitude is drawn around; at ten no bit is left, at which Pillow 12 fails."""
    crop = torch.randint(256, (3, 8, 8), dtype=torch.uint8, generator=generator)
    view = View(size=8, rand_augment="rand-m10-n8-p1-inc1")
    found = [rand_augmented(crop, view, (0.5, 0.5, 0.5), seed) for seed in range(40)]
    assert any(not one.any() for one in found)


class AsFiles(Shapes):
    """Small images that are read one by one, like photographs."""

    def __init__(self) -> None:
        super().__init__(images=24, size=16, cache=False)
        self._kept, self.pixels = self.pixels, None  # type: ignore[assignment]

    def read(self, index: int, *, shorter: int | None = None) -> Tensor:  # noqa: ARG002
        return self._kept[index]


@pytest.mark.parametrize("images", [Shapes(images=24, size=16, cache=False), AsFiles()], ids=["array", "files"])
def test_every_image_has_its_own_draw(images: Shapes) -> None:
    """Whatever batch and process it is in, and another one in every epoch."""

    def views(rand_augment: str | None = POLICY, epoch: int = 0, **options: int) -> dict[int, Tensor]:
        view = View(size=12, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, rand_augment=rand_augment)
        given: dict[str, Any] = {"batch_size": 24, "workers": 0} | options
        loader = Loader(images, (view,), **given)
        loader.set_epoch(epoch)
        return {int(index): crop for batch in loader for index, crop in zip(batch.index, batch.views[0], strict=True)}

    augmented = views()
    halves = views(batch_size=12, rank=0, world_size=2) | views(batch_size=12, rank=1, world_size=2)
    assert all(torch.equal(augmented[index], crop) for index, crop in halves.items())
    plain, later = views(rand_augment=None), views(epoch=1)
    assert sum(not torch.equal(augmented[index], plain[index]) for index in plain) > 12
    assert sum(not torch.equal(augmented[index], later[index]) for index in later) > 12


# --- random erasing ---


def test_erasing_is_timms_and_belongs_to_the_image() -> None:
    images = torch.zeros(200, 3, 16, 16)
    index = torch.arange(200)
    erased = erase(images.clone(), 0.25, seed=1, epoch=2, index=index)
    again = erase(images[:50].clone(), 0.25, seed=1, epoch=2, index=index[150:])
    assert torch.equal(again, erased[150:])
    touched = erased.flatten(1).ne(0).any(1)
    assert 30 < int(touched.sum()) < 70
    shares = erased[touched].ne(0).any(1).flatten(1).float().mean(1)
    assert shares.min() >= 0.01
    assert shares.max() <= 0.4
    noise = erased[touched]
    assert noise[noise != 0].std() == pytest.approx(1, abs=0.05)  # pixel by pixel
    timms = RandomErasing(1.0, mode="pixel", device="cpu")
    with seeded_globals(mix_seed(1, Stream.ERASING, 2, 5)):
        expected = timms(torch.zeros(3, 16, 16))
    assert torch.equal(erase(images[:1].clone(), 0.999, seed=1, epoch=2, index=torch.tensor([5]))[0], expected)


# --- mixtures ---


def coded(labels: Tensor, classes: int) -> Tensor:
    """Images whose channels are their label: the mean over a mixture is its target."""
    return torch.nn.functional.one_hot(labels, classes).float()[:, :, None, None].repeat(1, 1, 8, 8)


@pytest.mark.parametrize("settings", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_images_and_targets_are_mixed_alike(settings: dict[str, float], generator: torch.Generator) -> None:
    labels = torch.randint(5, (16,), generator=generator)
    chosen = Regularisation(**settings)  # type: ignore[arg-type]
    boxes = 0
    for step in range(20):
        images, targets = mix_images(coded(labels, 5), labels, 5, chosen, seed=0, step=step, first=0)
        torch.testing.assert_close(images.mean((2, 3)), targets)
        torch.testing.assert_close(targets.sum(1), torch.ones(16))
        partners = labels.view(8, 2).flip(1).flatten()
        assert all(
            set(row.nonzero().flatten().tolist()) <= {int(one), int(two)}
            for row, one, two in zip(targets, labels, partners, strict=True)
        )
        boxes += bool(images.unique().numel() <= 2)
    assert boxes == {"mixup": 0, "cutmix": 20}.get("".join(settings), boxes)
    if len(settings) == 2:
        assert 5 < boxes < 15


def test_parts_of_a_batch_are_mixed_as_the_batch(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """Two processes, or accumulated parts, get what one process gets; every group has its own mixture."""
    monkeypatch.setattr(regularisation, "MIXED_TOGETHER", 8)
    labels = torch.randint(5, (24,), generator=generator)
    images = torch.rand(24, 3, 8, 8, generator=generator)
    options = {"seed": 3, "step": 4}
    mixed, targets = mix_images(images.clone(), labels, 5, PUBLISHED, **options, first=0)
    for start, stop in ((0, 12), (12, 24), (4, 10)):
        part, found = mix_images(images[start:stop].clone(), labels[start:stop], 5, PUBLISHED, **options, first=start)
        assert torch.equal(part, mixed[start:stop])
        assert torch.equal(found, targets[start:stop])
    other, _ = mix_images(images.clone(), labels, 5, PUBLISHED, seed=3, step=5, first=0)
    assert not torch.equal(other, mixed)


def test_a_row_without_partner_stays_as_it_is(generator: torch.Generator) -> None:
    labels, images = torch.tensor([0, 1, 2]), torch.rand(3, 3, 8, 8, generator=generator)
    mixed, targets = mix_images(images.clone(), labels, 3, PUBLISHED, seed=0, step=0, first=0)
    assert torch.equal(mixed[2], images[2])
    torch.testing.assert_close(targets[2], torch.tensor([0.1 / 3, 0.1 / 3, 0.9 + 0.1 / 3]))
    assert torch.equal(targets[2:], smoothed(labels[2:], 3, 0.1))


# --- drop path, and all of it together ---


def test_drop_path_rises_to_the_last_block(coloured_subject: Make) -> None:
    subject = coloured_subject("vit")
    classifier = Classifier(subject, [4], FINE_TUNE_VIT)
    assert [path.rate for path in classifier.drop_paths] == [0.0, 0.0, 0.2, 0.2]
    assert not any(isinstance(module, DropPath) for module in subject.encoder.modules())
    assert classifier.encoder.state_dict().keys() == subject.encoder.state_dict().keys()
    assert add_drop_paths(coloured_subject("cnn").encoder, 0.1) == []
    assert Classifier(subject, [4], replace(FINE_TUNE_VIT, regularisation=PLAIN)).drop_paths == ()


def test_transformers_are_fine_tuned_with_the_published_regularisation(coloured_subject: Make) -> None:
    subject = coloured_subject("vit")
    options = {"epochs": 5, "encoder_lr": 0.03, "classifier_lr": 0.03}
    result = FineTune(**options).run(subject)  # type: ignore[arg-type]
    wanted = PUBLISHED.effective | {"drop_path": 0.1}  # it is narrower than ViT-B
    assert {name: result.chosen[name] for name in PUBLISHED.effective} == wanted
    assert result.headline["4 classes"] > 0.5
    plain = FineTune(regularisation="plain", **options).run(subject)  # type: ignore[arg-type]
    assert not PUBLISHED.effective.keys() & plain.chosen.keys()
    cnn = FineTune(epochs=1).run(coloured_subject("cnn"))
    assert not PUBLISHED.effective.keys() & cnn.chosen.keys()


@pytest.mark.parametrize(
    ("option", "value"),
    [("drop_path", 0.9), ("rand_augment", "none"), ("erasing", 0.9), ("label_smoothing", 0.9), ("mixup", 0.0)],
)
def test_every_option_has_an_effect(coloured_subject: Make, option: str, value: object) -> None:
    """On the weights after one epoch; `none` and 0 turn an operation off."""
    subject = coloured_subject("vit", count=8)
    lines: list[str] = []

    def weights(**given: object) -> Tensor:
        evaluation = FineTune(epochs=1, **given)  # type: ignore[arg-type]
        settings = evaluation._settings_for(FINE_TUNE_VIT, 32, replace(subject, message=lines.append), task="finetune")
        classifier = Classifier(subject, [4], settings)
        assert subject.train.labels is not None
        Supervision(subject, settings, "finetune").learn(classifier, subject.train, subject.train.labels[:, :1])
        return torch.cat([weight.flatten() for weight in classifier.parameters()])

    assert not torch.equal(weights(), weights(**{option: value}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_path": 1.0}, "drop_path is 1.0, but must be at least 0 and below 1"),
        ({"mixup": -1.0}, "mixup is -1.0, but must be a number of at least 0"),
        ({"rand_augment": "strong"}, "rand_augment is 'strong', but must be a policy of timm such as rand-m9"),
        ({"rand_augment": "rand-q9"}, "rand_augment is 'rand-q9'"),
        ({"regularisation": "mine"}, "finetune.regularisation is 'mine', but must be 'paper' or 'plain'"),
        ({"accumulate": 0}, "accumulate is 0, but must be at least 1"),
        ({"accumulate": 5, "batch_size": 16}, "a batch of 16 images cannot be cut into 5 equal parts"),
        ({"precision": "16-mixed"}, "precision 16-mixed needs a GPU"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, object], message: str, coloured_subject: Make) -> None:
    with pytest.raises(ValueError, match=r"but must|equal parts|needs a GPU") as error:
        FineTune(**options).run(coloured_subject("vit"))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)
