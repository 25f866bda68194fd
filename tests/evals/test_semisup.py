"""Semi-supervised learning: which images are taken, by whose settings, and that they teach something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from hirl.data import open_images
from hirl.data.sources.image_set import BadImage, ImageSet, Subset
from hirl.data.sources.skipped import Skipped, read_or_replace
from hirl.evals.base import Subject
from hirl.evals.semisup import SemiSupervised
from hirl.evals.training.sampling import class_balanced, find_listed
from hirl.evals.training.training_settings import FINE_TUNE_CNN, FINE_TUNE_VIT, SEMI_CNN, SEMI_VIT, nearest_share

Make = Callable[..., Subject]
NAMES = tuple("abcde")


@pytest.fixture
def labels(generator: torch.Generator) -> Tensor:
    return torch.arange(5).repeat(40)[torch.randperm(200, generator=generator)]


@pytest.fixture
def folder(tmp_path: Path) -> ImageSet:
    """Three images each of a cat and a dog; both have an image 0.png, and a corrupt one."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in ("0", f"{name}_1", f"{name}_2"):
            pixels = random.integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    (tmp_path / "photos/cat/0.png").write_bytes(b"no image")
    return open_images(tmp_path / "photos")


# --- which images ---


@pytest.mark.parametrize(("share", "each"), [(0.001, 1), (0.025, 1), (0.1, 4), (0.5, 20), (1.0, 40)])
def test_every_class_gives_the_same_number(labels: Tensor, share: float, each: int) -> None:
    chosen = class_balanced(labels, share, seed=0, names=NAMES)
    assert torch.bincount(labels[chosen]).tolist() == [each] * 5
    assert torch.equal(chosen, chosen.unique())


def test_the_images_depend_on_labels_share_and_seed_alone(labels: Tensor) -> None:
    chosen = class_balanced(labels, 0.1, seed=0, names=NAMES)
    torch.rand(10)
    assert torch.equal(class_balanced(labels, 0.1, seed=0, names=NAMES), chosen)
    assert not torch.equal(class_balanced(labels, 0.1, seed=1, names=NAMES), chosen)
    larger = class_balanced(labels, 0.5, seed=0, names=NAMES)
    assert set(chosen.tolist()) < set(larger.tolist())


def test_any_image_may_be_taken(labels: Tensor) -> None:
    drawn = torch.cat([class_balanced(labels, 0.1, seed=seed, names=NAMES) for seed in range(100)])
    assert len(drawn.unique()) == 200


def test_classes_that_are_too_small_are_named() -> None:
    labels = torch.tensor([0] * 50 + [1] * 50 + [2] * 5)
    assert len(class_balanced(labels, 0.14, seed=0, names=NAMES[:3])) == 15
    with pytest.raises(ValueError, match=r"18 training images of each class, but class 'c' has 5: .* at most 0.14"):
        class_balanced(labels, 0.5, seed=0, names=NAMES[:3])
    with pytest.raises(ValueError, match=r"but class 'd' has 0$"):
        class_balanced(labels, 0.01, seed=0, names=NAMES[:4])
    assert len(class_balanced(labels, 1.0, seed=0, names=NAMES[:3])) == 105
    for share in (0.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            class_balanced(labels, share, seed=0, names=NAMES[:3])


def test_a_list_of_files_fixes_the_images(folder: ImageSet) -> None:
    assert find_listed(folder, ["dog_1.png", "cat_2.png", ""]).tolist() == [2, 4]
    assert find_listed(folder, ["dog/0.png", "cat_1.png"]).tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"1 of the 2 listed files are not in .* \('bird.png' is one\)"):
        find_listed(folder, ["bird.png", "cat_1.png"])
    with pytest.raises(ValueError, match=r"more than once \('0.png' is one\): .* the end of its path"):
        find_listed(folder, ["0.png", "cat_1.png"])
    with pytest.raises(ValueError, match="list of files is empty"):
        find_listed(folder, [" ", ""])


def test_chosen_images_are_a_set_of_their_own(folder: ImageSet) -> None:
    chosen = Subset(folder, torch.tensor([4, 0, 2]))
    assert len(chosen) == 3
    assert chosen.labels is not None
    assert chosen.labels.flatten().tolist() == [1, 0, 0]
    assert chosen.path(0).endswith("dog/dog_1.png")
    assert torch.equal(chosen.read(2), folder.read(2))
    with pytest.raises(BadImage, match=r"Image .*cat/0.png"):
        chosen.read(1)
    image, index = read_or_replace(chosen, 1, skipped=Skipped())
    assert index == 2
    assert torch.equal(image, folder.read(2))


# --- whose settings ---


def test_official_settings() -> None:
    assert {share: (settings.encoder_lr, settings.classifier_lr) for share, settings in SEMI_CNN.items()} == {
        0.01: (0.02, 5.0),
        0.1: (0.01, 0.2),
    }
    assert {share: (settings.encoder_lr, settings.classifier_lr) for share, settings in SEMI_VIT.items()} == {
        0.01: (1e-3, 1e-3),
        0.1: (1e-4, 1e-4),
    }
    for settings in SEMI_CNN.values():
        assert replace(settings, batch_size=1024, encoder_lr=0.1, classifier_lr=1.0) == FINE_TUNE_CNN
        assert settings.batch_size == 256
        assert (settings.epochs, settings.milestones, settings.factor, settings.weight_decay) == (20, (12, 16), 0.2, 0)
    for settings in SEMI_VIT.values():
        assert settings.final_share * settings.encoder_lr == pytest.approx(1e-6)
        changed: dict[str, Any] = {
            "encoder_lr": 4e-3,
            "classifier_lr": 4e-3,
            "final_share": 1e-6 / 4e-3,
            "fewest_steps": 50,
        }
        assert replace(settings, **changed) == FINE_TUNE_VIT


@pytest.mark.parametrize(
    ("images", "official"),
    [(1, 0.01), (600, 0.01), (12_811, 0.01), (40_000, 0.01), (41_000, 0.1), (128_116, 0.1), (10**6, 0.1)],
)
def test_the_settings_are_those_of_the_share_of_imagenet_with_as_many_images(images: int, official: float) -> None:
    assert nearest_share(images) == official


# --- the evaluation ---


def test_it_learns_from_each_share_the_same_in_every_run(coloured_subject: Make) -> None:
    subject = coloured_subject("cnn")
    evaluation = SemiSupervised(shares=(0.025, 0.5), epochs=10, encoder_lr=0.2, classifier_lr=2.0)
    result = evaluation.run(subject)
    assert list(result.headline) == ["2.5 %, 4 classes", "2.5 %, 2 classes", "50 %, 4 classes", "50 %, 2 classes"]
    assert result.headline["50 %, 4 classes"] > 0.8
    assert result.headline["50 %, 4 classes"] > result.headline["2.5 %, 4 classes"]
    assert result.chosen["2.5 %"]["images"] == 4
    assert result.chosen["50 %"]["settings_of_share"] == 0.01
    assert evaluation.run(subject) == result


def test_files_instead_of_shares(coloured_subject: Make, folder: ImageSet, tmp_path: Path) -> None:
    subject = replace(coloured_subject("vit"), parts={"train": folder, "test": folder})
    (tmp_path / "names.txt").write_text("dog_1.png\ndog_2.png\ncat_1.png\n")
    evaluation = SemiSupervised(files=str(tmp_path / "names.txt"), epochs=1)
    result = evaluation.run(subject)
    assert list(result.headline) == ["50 %, 2 classes"]
    assert result.chosen["50 %"]["images"] == 3
    assert SemiSupervised(files=["dog_1.png", "dog_2.png", "cat_1.png"], epochs=1).run(subject) == result
    with pytest.raises(ValueError, match="has no image of 1 of its 2 classes"):  # before anything is trained
        SemiSupervised(files=["dog_1.png", "dog_2.png"]).check(subject.parts)
    earlier = evaluation.arguments
    (tmp_path / "names.txt").write_text("dog_0.png\ndog_2.png\ncat_1.png\n")
    assert evaluation.arguments != earlier  # so that a result for the earlier names is not taken for this one
    with pytest.raises(ValueError, match=r"semisup.files is 'nowhere.txt', which is not a file"):
        SemiSupervised(files="nowhere.txt").run(subject)
    with pytest.raises(ValueError, match="shares is empty"):
        SemiSupervised(shares=()).run(subject)


def test_one_per_cent_of_imagenet_keeps_the_published_batch_and_rate() -> None:
    """1 % of ImageNet has 12,811 images by the usual list, or 13 of each class."""
    for count in (12_811, 13_000):
        for family, batch, rate in ((SEMI_VIT, 1024, 1e-3), (SEMI_CNN, 256, 0.02)):
            settings = family[0.01].for_images(count)
            assert settings.batch_size == batch
            assert settings.encoder_lr == rate
    assert SEMI_VIT[0.1].for_images(128_116) == SEMI_VIT[0.1]


def test_a_smaller_batch_is_reported_in_a_line(coloured_subject: Make) -> None:
    lines: list[str] = []
    subject = replace(coloured_subject("vit"), message=lines.append)
    SemiSupervised(shares=(0.5,), epochs=1).run(subject)
    assert lines == [
        "semisup 50 %: 80 images are fewer than the published batch of 1,024: batch of 16; "
        "the rates follow (0.000125, 0.000125 for the classifier)"
    ]
    lines.clear()
    settings = SemiSupervised(shares=(0.5,), epochs=1, batch_size=1024)._settings_for(
        SEMI_VIT[0.1], 5000, subject, task="semisup"
    )
    assert settings.encoder_lr == 1e-4
    assert not lines


def test_a_share_that_one_image_per_class_makes_another_is_named_with_its_images(coloured_subject: Make) -> None:
    subject = coloured_subject("cnn", count=20)
    found = SemiSupervised(shares=(0.01, 1.0), epochs=1).run(subject)
    classes = len(subject.train.label_names[0])
    share = f"{100 * classes / len(subject.train):.2g} %"
    named = f"1 %, at least one per class: {classes} images = {share}"
    assert {name.rpartition(", ")[0] for name in found.headline} == {named, "100 %"}
