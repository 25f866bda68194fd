"""A file of a few lines classifies an image into the tree without hirl and torch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from hirl import Run
from hirl.data import open_images
from hirl.explore.embed import embed

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_tree.py"


def test_an_image_finds_its_place_with_onnxruntime_alone(
    vit_run: Path, tmp_path: Path, picture_files: Path, onnx_file: Callable[..., Path]
) -> None:
    pictures = open_images(picture_files, split="train")
    Image.fromarray(pictures.read(3).permute(1, 2, 0).numpy()).save(tmp_path / "3.png")
    check = (
        "import sys, runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0]); "
        "assert not {'torch', 'hirl', 'timm'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", check, str(EXAMPLE), str(onnx_file(vit_run, levels=True)), str(tmp_path / "3.png")]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    found = re.findall(r"level \d: (\d)-(\d+) \(confidence \d\.\d{3}\)", shown.stdout)
    path = embed(vit_run, device="cpu", quiet=True)["path"][3]
    assert found == [("0", str(path[0])), ("1", str(path[1]))]
    tree = Run(vit_run).tree
    assert torch.equal(tree.path(int(path[0])), torch.from_numpy(path))
