"""Transfer: fine-tuning under another name, and the layout of Places205 that the paper transfers to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data.sources.listed import find_lists, open_listed
from hirl.evals.base import Subject
from hirl.evals.finetune import FineTune, Transfer


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Lists at the top; images below images256/, by letter and class, some of them two folders deep."""
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for label, (folder, tint) in enumerate((("a/abbey", 20), ("a/apartment/outdoor", 120), ("b/beach", 220))):
        (tmp_path / "images256" / folder).mkdir(parents=True)
        for number in range(8):
            name = f"{folder}/gsun_{number}.jpg"
            pixels = np.full((18, 20, 3), tint + number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images256" / name)
            lists["train" if number < 5 else "val"].append(f"{name} {label}\n")
    for split, lines in lists.items():
        (tmp_path / f"{split}_places205.csv").write_text("".join(lines))
    (tmp_path / "readme.txt").write_text("a train of thought 5\n")
    return tmp_path


def test_places205_opens(places: Path) -> None:
    lists = find_lists(places, [file.name for file in places.iterdir()])
    assert {split: file.name for split, file in lists.items()} == {
        "train": "train_places205.csv",
        "val": "val_places205.csv",
    }
    train = open_listed(places, lists, split=None, channels=3)
    val = open_listed(places, lists, split="val", channels=3)
    assert (len(train), len(val)) == (15, 9)
    assert train.label_names == val.label_names == (("a/abbey", "a/apartment/outdoor", "b/beach"),)
    assert train.labels is not None
    assert torch.equal(train.labels, torch.arange(3).repeat_interleave(5)[:, None])
    assert train.path(5).endswith("images256/a/apartment/outdoor/gsun_0.jpg")
    assert int(val.read(8)[0, 0, 0]) == pytest.approx(227, abs=2)


def test_a_broken_list_is_reported(places: Path) -> None:
    lists = {"train": places / "train_places205.csv"}
    with lists["train"].open("a") as file:
        file.write("../secret.jpg 0\n")
    with pytest.raises(ValueError, match=r"line 16 of .*train_places205.csv is '../secret.jpg 0', but must be a path"):
        open_listed(places, lists, split="train", channels=3)
    lists["train"].write_text("z/zoo/1.jpg 0\n")
    with pytest.raises(ValueError, match=r"z/zoo/1.jpg, the first image listed for .*, is neither there nor in"):
        open_listed(places, lists, split="train", channels=3)


def test_it_fine_tunes_on_whatever_images_it_is_given(coloured_subject: Callable[..., Subject]) -> None:
    subject = coloured_subject()
    assert Transfer.name == "transfer"
    assert Transfer(epochs=1).run(subject) == FineTune(epochs=1).run(subject)
