"""Which timm network a state dict belongs to, told from the names and shapes of its tensors."""

from __future__ import annotations

import re
from math import isqrt
from typing import Any

from hirl.encoders.encoder_file import Weights

RESNETS: dict[str, dict[tuple[int, ...], str]] = {  # by block, the blocks per stage
    "basic": {(2, 2, 2, 2): "resnet18", (3, 4, 6, 3): "resnet34"},
    "bottleneck": {(3, 4, 6, 3): "resnet50", (3, 4, 23, 3): "resnet101", (3, 8, 36, 3): "resnet152"},
}
CHANNELS = [64, 128, 256, 512]
VITS = {192: ("tiny", 12), 384: ("small", 12), 768: ("base", 12), 1024: ("large", 24)}  # by width: name and depth
HEAD_WIDTH = 64


def infer_network(weights: Weights, *, attention: dict[int, int]) -> tuple[str, dict[str, Any]] | None:
    """The name and arguments of the network; None for one that is neither a ResNet nor a plain vision transformer.

    attention: heads by width, where they are not of 64 columns each
    """
    if {"conv1.weight", "layer1.0.conv1.weight"} <= weights.keys():
        return _resnet(weights)
    if "patch_embed.proj.weight" in weights and "pos_embed" in weights:
        return _transformer(weights, attention)
    return None


def _resnet(weights: Weights) -> tuple[str, dict[str, Any]]:
    stages = range(1, 5)
    blocks = tuple(_count(rf"layer{stage}\.(\d+)\.", weights) for stage in stages)
    # Either tensor tells the channels, so that a file which lacks the other is refused by its name.
    first = [weights.get(f"layer{n}.0.conv1.weight", weights.get(f"layer{n}.0.bn1.weight")) for n in stages]
    channels = [0 if tensor is None else len(tensor) for tensor in first]
    known = RESNETS["bottleneck" if "layer1.0.conv3.weight" in weights else "basic"]
    args: dict[str, Any] = {} if blocks in known else {"layers": list(blocks)}
    args |= {} if channels == CHANNELS else {"channels": channels}
    args |= _in_chans(weights["conv1.weight"].shape[1])
    return known.get(blocks, next(iter(known.values()))), args


def _transformer(weights: Weights, attention: dict[int, int]) -> tuple[str, dict[str, Any]]:
    dim, channels, patch, _ = weights["patch_embed.proj.weight"].shape
    depth = _count(r"blocks\.(\d+)\.", weights)
    heads = attention.get(dim, max(1, dim // HEAD_WIDTH))
    has_class, registers = "cls_token" in weights, weights.get("reg_token")
    places = weights["pos_embed"].shape[1]
    size = patch * isqrt(places - (has_class and registers is None))
    name, usual_depth = VITS.get(dim, VITS[768])
    wide = dim if dim in VITS else 768
    usual = {"embed_dim": wide, "depth": usual_depth, "num_heads": wide // HEAD_WIDTH}
    usual |= {"patch_size": 16, "img_size": 224}
    found = {"embed_dim": dim, "depth": depth, "num_heads": heads, "patch_size": patch, "img_size": size}
    args: dict[str, Any] = {key: value for key, value in found.items() if value != usual[key]}
    if "blocks.0.ls1.gamma" in weights:
        args["init_values"] = 1e-5
    if registers is not None:
        args |= {"reg_tokens": registers.shape[1], "no_embed_class": True}
    if not has_class:
        args |= {"class_token": False, "global_pool": "avg"}
    return f"vit_{name}_patch16_224", args | _in_chans(channels)


def _in_chans(channels: int) -> dict[str, Any]:
    return {} if channels == 3 else {"in_chans": channels}


def _count(pattern: str, weights: Weights) -> int:
    return len({found[1] for name in weights if (found := re.match(pattern, name))})
