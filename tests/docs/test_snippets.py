"""All Python code in README and docs runs, on few images and with few prototypes."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.docs.fences import blocks, command_lines

import hirl
from hirl.cli.main import main
from hirl.encoders.encoder_file import save_encoder
from hirl.explore.embed import embed
from hirl.methods import SimSiam

SNIPPETS = blocks("python")
FEWER = {
    "(3000, 300, 30)": "(30, 10, 3)",
    "(300, 30)": "(30, 10)",
    "10_000": "48",
    "2_000": "24",
    "batch_size=256": "batch_size=16",
}


def is_outline(code: str) -> bool:
    """Whether a part is left to the reader, as `...`."""
    return any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(ast.parse(code)))


def small_pretrain(data: Any, _method: Any = None, hierarchy: Any = None, **options: Any) -> hirl.Run:
    """A run of the same kind that takes a second."""
    small: dict[str, Any] = {"epochs": 2, "batch_size": 16, "image_size": 32, "workers": 0, "accelerator": "cpu"}
    if hierarchy is not None:
        hierarchy = hirl.Hierarchy(levels=(12, 4, 2), start_epoch=1)
    method = SimSiam(backbone="resnet10t", dim=16, predictor_hidden=8)
    return hirl.train.pretrain.pretrain(data, method, hierarchy, out=f"runs/snippet-{len(options)}", **options | small)


@pytest.fixture
def names(inside: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code takes for granted."""
    monkeypatch.setattr(hirl, "pretrain", small_pretrain, raising=False)
    torch.manual_seed(0)
    hirl.hierarchical_kmeans(torch.randn(48, 16), levels=(12, 4, 2)).save("tree.safetensors")
    z0 = torch.randn(8, 128, requires_grad=True)
    features = torch.randn(60, 128)
    paths = hirl.SemanticPaths(dim=128, levels=(30, 10, 3))
    paths.refresh(features)
    encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    return {
        "hirl": hirl,
        "loss_image": torch.tensor(1.0),
        "z0": z0,
        "z0_of_another_view": z0.detach(),
        "torch": torch,
        "index": torch.arange(8),
        "file_names": ("03.png", "00.png"),
        "features": features,
        "new_features": torch.randn(5, 16),
        "paths": paths,
        "z": torch.randn(8, 2, 128),
        "leaves": torch.arange(8),
        "run": hirl.Run(inside / "runs" / "x"),
        "my_module": encoder,
        "images": hirl.data.open_images("photos/"),
    }


@pytest.mark.parametrize(
    ("page", "code"), SNIPPETS, ids=[f"{page}-{place}" for place, (page, _) in enumerate(SNIPPETS)]
)
def test_code_runs(page: str, code: str, names: dict[str, Any]) -> None:
    for large, small in FEWER.items():
        code = code.replace(large, small)
    compiled = compile(code, page, "exec")
    if page == "docs/export.md":
        write_exports()
    if not is_outline(code):
        exec(compiled, names)


def write_exports() -> None:
    """What the commands of the page write, except for ONNX, which no code there opens; once."""
    lines = [line.parts[1:] for line in command_lines() if line.page == "docs/export.md" and "--to" in line.parts]
    for line in lines:
        if "onnx" not in line and not Path(line[-1]).exists():
            assert main(list(line)) == 0


def test_the_encoder_is_loaded_as_the_docs_say(inside: Path) -> None:
    """Without hirl, to the same features as the run's own encoder."""
    (code,) = (code for page, code in SNIPPETS if page == "docs/explore.md")
    assert "hirl" not in code.replace("runs/", "")
    found: dict[str, Any] = {}
    exec(code, found)
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(found["encoder"].eval()(images), hirl.Run(inside / "runs" / "x").encoder(images))


def detailed(width: int, height: int, dice: np.random.Generator) -> Image.Image:
    """Noise at several scales, as sharp as a photograph: to resize it otherwise, or shifted by half a pixel, shows."""
    picture = np.full((height, width, 3), 128.0)
    for octave in range(2, 9):
        noise = Image.fromarray(dice.integers(0, 256, (2**octave, 2**octave, 3), dtype=np.uint8))
        layer = noise.resize((width, height), Image.Resampling.BICUBIC)
        picture += 0.8**octave * (np.asarray(layer, dtype=float) - 128)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("size", [32, 64, 112])
def test_images_are_preprocessed_as_the_docs_say(
    size: int, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hirl, from files to the features of `hirl embed`: with and without a margin around the crop."""
    run = hirl.Run(world / "runs" / "x")
    _, about = run.encoder_weights()
    assert about.image_size == 32
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "photos").mkdir()
    file = tmp_path / "runs" / "x" / "encoder.safetensors"
    save_encoder(file, run.encoder, replace(about, image_size=size, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)))
    dice = np.random.default_rng(0)
    for number, shape in enumerate([(151, 120), (90, 133), (112, 112)]):
        coarse = Image.fromarray(dice.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        coarse.resize(shape, Image.Resampling.BICUBIC).save(tmp_path / "photos" / f"{number}.png")
    for number, shape in enumerate([(340, 331), (240, 291), (640, 480), (1200, 900), (1043, 782)], start=3):
        detailed(*shape, dice).save(tmp_path / "photos" / f"{number}.jpg", quality=90)
    coarse.save(tmp_path / "query.jpg")
    monkeypatch.chdir(tmp_path)
    (code,) = (code for page, code in SNIPPETS if page == "docs/explore.md")
    found: dict[str, Any] = {}
    exec(code, found)
    expected = embed(file, "photos", device="cpu", quiet=True)
    mine = torch.cat([found["embed"](path) for path in expected["image"]])
    difference = (mine - torch.from_numpy(expected["features"])).norm(dim=1) / mine.norm(dim=1)
    # Measured: 0.007 at most, from pixels that round the other way; 0.08 and more with bicubic interpolation at 32 px,
    # or at 112 px with a margin of 250 / 224; 0.24 for 240 × 291 at 64 px, reduced to three eighths.
    assert float(difference.max()) < 0.01
