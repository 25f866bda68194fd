"""`--to huggingface`: a folder to upload to the Hugging Face hub, with a model card.

config.json, model.safetensors     a network of timm, as timm writes it: `timm.create_model("local-dir:FOLDER")`
onnx/model.onnx                    any other network, and with levels the path through the tree as well
encoder.safetensors                an adapted encoder, for hirl
preprocessor_config.json           the preprocessing for the image processors of transformers
README.md                          the model card: how to load it, what was measured, settings, data, versions
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.export.model_card import model_card
from hirl.export.network import Export, PixelFormat
from hirl.export.onnx_file import write_onnx
from hirl.export.timm_folder import FILES as TIMM_FILES
from hirl.export.timm_folder import fill_timm_folder, timm_config
from hirl.files import atomic_folder

ONNX, ADAPTED, PROCESSOR, CARD = "onnx/model.onnx", "encoder.safetensors", "preprocessor_config.json", "README.md"
FILES = (*TIMM_FILES, "onnx", ONNX, ADAPTED, PROCESSOR, CARD)
RESAMPLE = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers for them


def write_huggingface(export: Export, out: Path) -> float:
    """Write the folder, and return the largest difference between what its loaders give and torch."""
    config, pixels = timm_config(export), export.pixels
    with atomic_folder(out) as aside:
        difference = 0.0 if config is None else fill_timm_folder(export, config, aside)
        if config is None or export.tree is not None:
            (aside / ONNX).parent.mkdir()
            difference = max(difference, write_onnx(export, aside / ONNX))
        if isinstance(export.encoder.network, AdaptedNetwork):
            about = {name: export.encoder.description[name] for name in ("backbone", "backbone_args")}
            images = {"image_size": pixels.size, "mean": pixels.mean, "std": pixels.std}
            metadata = EncoderMetadata(**about | images, provenance=export.encoder.provenance)
            save_encoder(aside / ADAPTED, export.encoder.network, metadata)
        content = json.dumps(processor_config(pixels), indent=2) + "\n"
        (aside / PROCESSOR).write_text(content, encoding="utf-8")
        card = model_card(export, out.resolve().name, difference, of_timm=config is not None)
        (aside / CARD).write_text(card, encoding="utf-8")
    return difference


def processor_config(pixels: PixelFormat) -> dict[str, Any]:
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
