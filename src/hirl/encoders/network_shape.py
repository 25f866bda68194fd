"""Which timm network a state dict belongs to, inferred from the names and shapes of its tensors.

Names and shapes do not show whether blocks are missing, nor how many attention heads there are: a network is taken for
complete only if its depth is that of a published one, or what its source says.
"""

from __future__ import annotations

import json
import re
from math import isqrt
from typing import Any, NamedTuple

from hirl.encoders.encoder_file import Weights

Depth = tuple[int, ...]  # blocks per stage; a transformer has one stage
RESNETS: dict[str, dict[Depth, str]] = {  # by block
    "basic": {(2, 2, 2, 2): "resnet18", (3, 4, 6, 3): "resnet34"},
    "bottleneck": {
        (3, 4, 6, 3): "resnet50",
        (2, 2, 2, 2): "resnet26",
        (3, 4, 23, 3): "resnet101",
        (3, 8, 36, 3): "resnet152",
        (3, 24, 36, 3): "resnet200",
    },
}
ONE_EACH = (1, 1, 1, 1)  # ResNet-10 and -14, which timm has with another stem only
CHANNELS = [64, 128, 256, 512]


class Transformer(NamedTuple):
    """A published vision transformer, which its width identifies."""

    name: str
    depth: int
    heads: int
    patch: int = 16


VITS = {
    192: Transformer("vit_tiny_patch16_224", 12, 3),
    384: Transformer("vit_small_patch16_224", 12, 6),
    768: Transformer("vit_base_patch16_224", 12, 12),
    1024: Transformer("vit_large_patch16_224", 24, 16),
    1280: Transformer("vit_huge_patch14_224", 32, 16, 14),
}
HEAD_WIDTH = 64  # of most transformers


class InferredNetwork(NamedTuple):
    """A timm network. `mismatch`: why the tensors may be a part of it, or of another; None if they are all of it."""

    name: str
    args: dict[str, Any]
    mismatch: str | None = None

    @property
    def options(self) -> str:
        """How to name this network where an encoder is opened."""
        return f"backbone {self.name}" + (f" and backbone_args {json.dumps(self.args)}" if self.args else "")


def infer_network(weights: Weights, *, attention: dict[int, int], depth: Depth | None = None) -> InferredNetwork | None:
    """The network of the weights; None for one that is neither a ResNet nor a plain vision transformer.

    attention: heads by width, where they are not those of the published transformer
    depth: as the source of the weights says, if it does
    """
    if {"conv1.weight", "layer1.0.conv1.weight"} <= weights.keys():
        return _resnet(weights, depth)
    if "patch_embed.proj.weight" in weights and "pos_embed" in weights:
        return _transformer(weights, attention, depth)
    return None


def _resnet(weights: Weights, depth: Depth | None) -> InferredNetwork:
    stages = range(1, 5)
    blocks = tuple(_count(rf"layer{stage}\.(\d+)\.", weights) for stage in stages)
    # Either tensor tells the channels, so that a file which lacks the other is refused by its name.
    first = [weights.get(f"layer{n}.0.conv1.weight", weights.get(f"layer{n}.0.bn1.weight")) for n in stages]
    channels = [0 if tensor is None else len(tensor) for tensor in first]
    known = RESNETS["bottleneck" if "layer1.0.conv3.weight" in weights else "basic"]
    args: dict[str, Any] = {} if blocks in known else {"layers": list(blocks)}
    args |= {} if channels == CHANNELS else {"channels": channels}
    args |= _in_chans(weights["conv1.weight"].shape[1])
    mismatch = None if depth is None else _lacking(blocks, depth)
    if depth is None and blocks not in {*known, ONE_EACH}:
        nearest = min(known, key=lambda one: sum(abs(a - b) for a, b in zip(one, blocks, strict=True)))
        mismatch = (
            f"holds a ResNet of {_listed(blocks)} blocks per stage, which no published one has; the nearest, "
            f"{known[nearest]}, has {_listed(nearest)}"
        )
    return InferredNetwork(known.get(blocks, next(iter(known.values()))), args, mismatch)


def _transformer(weights: Weights, attention: dict[int, int], depth: Depth | None) -> InferredNetwork:
    dim, channels, patch, _ = weights["patch_embed.proj.weight"].shape
    blocks = _count(r"blocks\.(\d+)\.", weights)
    wide = min(VITS, key=lambda one: abs(one - dim))
    known = VITS[wide]
    heads = attention.get(dim, known.heads if dim == wide else max(1, dim // HEAD_WIDTH))
    has_class, registers = "cls_token" in weights, weights.get("reg_token")
    places = weights["pos_embed"].shape[1]
    size = patch * isqrt(places - (has_class and registers is None))
    usual = {"embed_dim": wide, "depth": known.depth, "num_heads": known.heads}
    usual |= {"patch_size": known.patch, "img_size": 224}
    found = {"embed_dim": dim, "depth": blocks, "num_heads": heads, "patch_size": patch, "img_size": size}
    args: dict[str, Any] = {key: value for key, value in found.items() if value != usual[key]}
    if "blocks.0.ls1.gamma" in weights:
        args["init_values"] = 1e-5
    if registers is not None:
        args |= {"reg_tokens": registers.shape[1], "no_embed_class": True}
    if not has_class:
        args |= {"class_token": False, "global_pool": "avg"}
    mismatch = None if depth is None else _lacking((blocks,), depth)
    if depth is None and (dim, blocks) != (wide, known.depth):
        mismatch = (
            f"holds a vision transformer of width {dim} with {blocks} blocks, which no published one has; the nearest, "
            f"{known.name}, has width {wide} and {known.depth} blocks"
        )
    return InferredNetwork(known.name, args | _in_chans(channels), mismatch)


def _lacking(blocks: Depth, depth: Depth) -> str | None:
    if blocks == depth:
        return None
    return f"holds {_listed(blocks)} blocks, but must have the {_listed(depth)} that its config.json says"


def _listed(numbers: Depth) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _in_chans(channels: int) -> dict[str, Any]:
    return {} if channels == 3 else {"in_chans": channels}


def _count(pattern: str, weights: Weights) -> int:
    return len({found[1] for name in weights if (found := re.match(pattern, name))})
