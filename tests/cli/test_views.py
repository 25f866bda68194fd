"""`hirl views` through the command's entry point: the sheet shows the pixels that training gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

from hirl.cli.main import main
from hirl.data import Loader, in_memory, open_images
from hirl.data.views import View
from hirl.explore.view_sheet import _GAP, _HIDDEN, _MARGIN
from hirl.methods import MoCoV2

from ..small_methods import CHOICES, METHODS, NAMES

SIZE, SEED, EPOCH = 64, 3, 2


@pytest.fixture(params=["array", "small files", "large files"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Small images, which training reads into memory, or large files, which it reads one by one."""
    rng = np.random.default_rng(0)
    if request.param == "array":
        np.savez(tmp_path / "images.npz", images=rng.integers(0, 256, (9, SIZE, SIZE, 3), dtype=np.uint8))
        return tmp_path / "images.npz"
    (tmp_path / "images").mkdir()
    for number in range(5):
        pixels = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        size = (SIZE, SIZE) if request.param == "small files" else (210 + number, 150)
        pixels.resize(size).save(tmp_path / "images" / f"{number}.png")
    return tmp_path / "images"


def shown_views(sheet: Path, views: tuple[View, ...], rows: int) -> list[list[np.ndarray]]:
    """Per image the views on a sheet whose tiles have the size of a global view: (side, side, 3) uint8 each."""
    pixels = np.asarray(Image.open(sheet).convert("RGB"))
    found: list[list[np.ndarray]] = [[] for _ in range(rows)]
    tile = views[0].size
    bottom = pixels.shape[0] - _MARGIN
    left = _MARGIN + tile + 2 * _GAP
    for view in views:
        for row in range(rows):
            top = bottom - (rows - row) * (tile + _GAP) + _GAP + (tile - view.size) // 2
            found[row].append(pixels[top : top + view.size, left : left + view.size])
        left += view.size + _GAP
    return found


def drawn(view: Tensor, mask: Tensor | None) -> np.ndarray:
    """A view (3, s, s) in [0, 1] as the sheet should show it: 8 bits per channel, masked patches blank."""
    pixels = view.clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy().copy()
    if mask is not None:
        patch = len(pixels) // len(mask)
        pixels[np.kron(mask.numpy(), np.ones((patch, patch), dtype=bool))] = _HIDDEN
    return pixels


def same_but_corners(one: np.ndarray, other: np.ndarray) -> bool:
    """The corners of a tile are rounded off."""
    inside = np.ones(one.shape[:2], dtype=bool)
    for rows in (slice(0, 5), slice(-5, None)):
        for columns in (slice(0, 5), slice(-5, None)):
            inside[rows, columns] = False
    return bool((one[inside] == other[inside]).all())


@pytest.mark.parametrize("name", NAMES)
def test_the_sheet_shows_the_pixels_of_a_training_loader(name: str, source: Path, tmp_path: Path) -> None:
    images = in_memory(open_images(source))
    out = tmp_path / "views.png"
    arguments = {"local_crops": 2} if "local_crops" in METHODS[name]().arguments else {}
    chosen = [text for key, value in arguments.items() for text in (f"--method.{key}", str(value))]
    line = ["views", str(source), "--method", name, *chosen]
    line += ["--tile", str(SIZE), "--seed", str(SEED), "--epoch", str(EPOCH)]
    if images.pixels is None:
        line += ["--image_size", str(SIZE)]  # the default for small images
    assert main([*line, "--rows", "4", "--out", str(out)]) == 0

    views = METHODS[name](**arguments).views(SIZE)
    identity: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3}  # the sheet shows views before normalisation
    loader = Loader(images, views, batch_size=2, seed=SEED, workers=0, drop_last=False, **identity)
    loader.set_epoch(EPOCH)
    expected: dict[int, list[np.ndarray]] = {}
    for batch in loader:
        for row, index in enumerate(batch.index.tolist()):
            masks = [None if mask is None else mask[row] for mask in batch.masks]
            expected[index] = [drawn(view[row], mask) for view, mask in zip(batch.views, masks, strict=True)]
    indices = np.linspace(0, len(images) - 1, 4).round().astype(int).tolist()
    for index, found in zip(indices, shown_views(out, views, 4), strict=True):
        assert len(found) == len(views)
        assert all(same_but_corners(one, other) for one, other in zip(found, expected[index], strict=True))
    if any(view.mask is not None for view in views):
        assert any((view == _HIDDEN).all(-1).any() for one in expected.values() for view in one)


def test_the_sheet_of_a_run_shows_what_its_network_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded in training; the run's config.yaml gives images, method, size and seed."""
    got: list[list[Tensor]] = []
    forward = MoCoV2.forward

    def recorded(self: MoCoV2, views: list[Tensor], masks: list[Tensor | None], step: int) -> Any:
        if len(views[0]) == 8:  # not the few with which memory is estimated before the first step
            got.append(views)
        return forward(self, views, masks, step)

    monkeypatch.setattr(MoCoV2, "forward", recorded)
    source = tmp_path / "images.npz"
    np.savez(source, images=np.random.default_rng(0).integers(0, 256, (16, 32, 32, 3), dtype=np.uint8))
    network = {"backbone": "resnet10t", "backbone_args": {"channels": [8, 8, 8, 8]}, "queue_length": 8, "bn_splits": 2}
    recipe = {
        "method": {"class_path": "hirl.methods.MoCoV2", "init_args": network},
        "hierarchy": None,
        "epochs": 1,
        "batch_size": 8,
        "seed": 5,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    run = tmp_path / "run"
    line = ["pretrain", str(source), "--config", str(tmp_path / "recipe.yaml"), "--accelerator", "cpu"]
    assert main([*line, "--devices", "1", "--out", str(run)]) == 0

    out = tmp_path / "views.png"
    assert main(["views", "--config", str(run / "config.yaml"), "--tile", "32", "--rows", "16", "--out", str(out)]) == 0
    for found in shown_views(out, MoCoV2().views(32), 16):
        assert any(
            all(same_but_corners(one, drawn(view[row], None)) for one, view in zip(found, views, strict=True))
            for views in got[:2]
            for row in range(8)
        )


def test_options_stand_on_top_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, ...]] = []

    def recorded(images: Any, views: Any, **options: Any) -> Image.Image:
        called.append((images, views, options))
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr("hirl.explore.view_sheet", recorded)
    line = ["views", "shapes", "--config", "small/dino", "--out"]
    assert main([*line, str(tmp_path / "a.png")]) == 0
    assert main([*line, str(tmp_path / "b.png"), "--method.local_crops", "3", "--image_size", "64", "--seed", "2"]) == 0
    (_, recipe, _), (_, changed, options) = called
    assert [view.size for view in recipe] == [32, 32]
    assert [view.size for view in changed] == [64, 64, 24, 24, 24]
    assert (options["seed"], options["title"]) == (2, "DINO, 64 px")


def test_a_method_of_ones_own(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images in files have their own size, as in training."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    out = tmp_path / "views.png"
    line = ["views", str(photos), "--method", "simclr.SimCLR", "--method.temperature", "0.1"]
    assert main([*line, "--rows", "9", "--tile", "30", "--out", str(out)]) == 0
    size = (View(size=30),) * 2
    assert all(len(found) == 2 and found[0].shape == (30, 30, 3) for found in shown_views(out, size, 9))


def test_sheets_of_other_formats(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "views.webp"
    assert main(["views", str(photos), "--method", "DINO", "--image_size", "32", "--rows", "2", "--out", str(out)]) == 0
    with Image.open(out) as sheet:
        assert sheet.format == "WEBP"
        assert sheet.height > 2 * 112


@pytest.mark.parametrize("side", [40, 200])
def test_unreadable_images_are_replaced_and_listed(
    side: int, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether they are read into memory first or for the sheet."""
    for file in photos.rglob("*.png"):
        Image.open(file).resize((side, side)).save(file)
    (photos / "cats" / "tabby" / "1.png").write_bytes(b"broken")
    line = ["views", str(photos), "--method", "MoCoV2", "--image_size", "32", "--rows", "9"]
    assert main([*line, "--out", str(tmp_path / "views.png")]) == 0
    shown = capsys.readouterr().out
    assert "Unreadable images, each replaced by the next readable one: 1" in shown
    assert "tabby/1.png" in shown


MISTAKES = {
    "an unknown method": (["{photos}", "--method", "nonsense", "--out", "v.png"], "nonsense"),
    "a file's name of a method": (["{photos}", "--method", "dino", "--out", "v.png"], CHOICES),
    "no method": (["{photos}", "--out", "v.png"], f"the option --method is missing: {CHOICES}"),
    "no images": (["--method", "DINO", "--out", "v.png"], "the images are missing"),
    "an unknown recipe": (["{photos}", "--config", "small/nonsense", "--out", "v.png"], "small/dino"),
    "an unknown option": (["{photos}", "--method", "DINO", "--epochs", "3", "--out", "v.png"], "--epochs"),
    "an unknown option of the method": (["{photos}", "--method", "DINO", "--method.k", "3", "--out", "v.png"], "k"),
    "a value out of range": (
        ["{photos}", "--method", "DINO", "--method.local_crops", "-1", "--out", "v.png"],
        "local_crops is -1, but must be at least 0",
    ),
    "a view of no pixels": (
        ["{photos}", "--method", "DINO", "--image_size", "0", "--out", "v.png"],
        "size is 0, but must be at least 1",
    ),
    "a negative seed": (
        ["{photos}", "--method", "DINO", "--seed", "-1", "--out", "v.png"],
        "seed is -1, but must be at least 0",
    ),
    "a negative epoch": (["{photos}", "--method", "DINO", "--epoch", "-1", "--out", "v.png"], "epoch"),
    "a tile too small": (["{photos}", "--method", "MoCoV2", "--tile", "2", "--out", "v.png"], "tile is 2"),
    "a size that cuts patches": (["{photos}", "--method", "IBOT", "--image_size", "50", "--out", "v.png"], "patch"),
    "a view larger than a sheet": (
        ["{photos}", "--method", "DINO", "--image_size", "9999", "--out", "v.png"],
        "1024",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, expected = MISTAKES[mistake]
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)

    code = main(["views", *(argument.format(photos=photos) for argument in arguments)])

    shown = capsys.readouterr()
    assert code == 2, shown.out
    (sentence,) = shown.err.strip().splitlines()
    assert sentence.startswith("hirl: ")
    assert expected in sentence
    assert sorted(tmp_path.rglob("*")) == before
