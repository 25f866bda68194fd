"""`--to timm`: a folder that timm opens itself, `timm.create_model("local-dir:FOLDER", pretrained=True)`.

This is also timm's layout on the Hugging Face hub: config.json names the network, its arguments and the preprocessing
(`pretrained_cfg`), model.safetensors holds the weights.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import make_backbone
from hirl.export.comparison import compare_with_torch
from hirl.export.network import Export, PixelFormat
from hirl.files import atomic_folder

FILES = ("config.json", "model.safetensors")


def write_timm(export: Export, out: Path) -> float:
    """Write the folder, and return the largest difference between timm's network and ours."""
    config = timm_config(export)
    if config is None:
        raise export.unsupported_error("timm")
    with atomic_folder(out) as aside:
        return fill_timm_folder(export, config, aside)


def fill_timm_folder(export: Export, config: dict[str, Any], folder: Path) -> float:
    """As `write_timm`, into a folder that is there."""
    import timm  # takes seconds, which `import hirl` need not

    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in export.encoder.network.state_dict().items()}
    config_file, weights_file = (folder / name for name in FILES)
    save_file(weights, weights_file)
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return compare_with_torch(export, lambda pixels: {"features": loaded(export.network.normalise(pixels))}, "timm")


def timm_config(export: Export) -> dict[str, Any] | None:
    """What config.json holds; None if timm has no such network."""
    import timm

    about, network = export.encoder.description, export.encoder.network
    name, args = str(about.get("backbone", "")), dict(about.get("backbone_args") or {})
    if isinstance(network, AdaptedNetwork) or not timm.is_model(name):
        return None
    if make_backbone(name, **args).state_dict().keys() != network.state_dict().keys():
        return None
    pixels, fixed = export.pixels, {"fixed_input_size": True} if "img_size" in args else {}
    return {
        "architecture": name,
        "num_classes": 0,
        "num_features": int(network.num_features),  # type: ignore[arg-type]
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [pixels.channels, pixels.size, pixels.size],
            "interpolation": pixels.interpolation,
            "crop_pct": crop_share(pixels),
            "crop_mode": "center",
            "mean": list(pixels.mean),
            "std": list(pixels.std),
            "num_classes": 0,
        }
        | fixed,
    }


def crop_share(pixels: PixelFormat) -> float:
    """The size over that of the resized image; timm divides by it and rounds down, which must give the latter again."""
    share = pixels.size / pixels.resize
    return share if math.floor(pixels.size / share) == pixels.resize else math.nextafter(share, 0)
