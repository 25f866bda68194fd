"""`--to huggingface`: a folder to upload to the Hugging Face hub, in timm's layout there, with a model card.

config.json, model.safetensors     as timm writes them: `timm.create_model("local-dir:FOLDER", pretrained=True)`
preprocessor_config.json           the same preprocessing for the image processors of transformers
README.md                          the model card: what was measured, settings, data, versions
onnx/model.onnx                    with levels: the path through the tree as well
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hirl.export.model_card import model_card
from hirl.export.network import Export, Pixels
from hirl.export.onnx_file import write_onnx
from hirl.export.timm_folder import fill_timm_folder, timm_config
from hirl.files import atomic_folder

RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers for them


def write_huggingface(export: Export, out: Path) -> float:
    """Write the folder, and return the largest difference between what its loaders give and torch."""
    config = timm_config(export)
    with atomic_folder(out) as aside:
        difference = fill_timm_folder(export, config, aside)
        if export.tree is not None:
            (aside / "onnx").mkdir()
            difference = max(difference, write_onnx(export, aside / "onnx" / "model.onnx"))
        content = json.dumps(processor_config(export.pixels), indent=2) + "\n"
        (aside / "preprocessor_config.json").write_text(content, encoding="utf-8")
        (aside / "README.md").write_text(model_card(export, out.resolve().name, difference), encoding="utf-8")
    return difference


def processor_config(pixels: Pixels) -> dict[str, Any]:
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": pixels.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": pixels.resize},
        "resample": RESAMPLE[pixels.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": pixels.size, "width": pixels.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }
