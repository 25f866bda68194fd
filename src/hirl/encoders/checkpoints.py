"""The encoder in a checkpoint of another project: layout recognised by names, network by shapes; every tensor must be
used.

`layouts` says where each project keeps it. Heads are left out on purpose and named; anything else that is missing or
left over is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hirl.encoders.encoder_file import KEYS_SHOWN, Weights, load_content
from hirl.encoders.layouts import CLASSIFIERS, LAYOUTS, Layout
from hirl.encoders.network_shape import Depth, InferredNetwork, infer_network
from hirl.encoders.weights_source import ImageFormat, Interpolation, Provenance

WRAPPERS = ("module.", "_orig_mod.")  # of parallel training and of torch.compile
HF_FILES = ("config.json", "model.safetensors")
BILINEAR = 2  # in preprocessor_config.json, which has Pillow's numbers


class ForeignEncoder(NamedTuple):
    """An encoder found in a checkpoint. `network` is None if its names and shapes do not tell it."""

    weights: Weights  # by timm's names
    heads: Weights  # what was left out on purpose, by the project's names
    network: InferredNetwork | None
    provenance: Provenance
    format: ImageFormat | None
    norm_eps: float | None = None  # of layer norms, where it is not timm's

    def complete_network(self, file: Path) -> InferredNetwork:
        """The network, or a ValueError if it is not known or may be a part of another one."""
        if self.network is None:
            raise ValueError(
                f"{str(file)!r} holds weights but not the name of their network: name it with backbone, e.g. resnet50"
            )
        if self.network.mismatch is not None:
            raise ValueError(
                f"{str(file)!r} {self.network.mismatch}: restore the file if blocks are missing; if it is complete, "
                f"name its network with {self.network.options}"
            )
        return self.network


def is_hugging_face_folder(path: Path) -> bool:
    """Whether a folder holds a network of the library transformers."""
    return all((path / name).is_file() for name in HF_FILES)


def read_checkpoint(path: Path) -> ForeignEncoder:
    """The encoder of a checkpoint, a plain file of weights or a Hugging Face folder."""
    file = path / HF_FILES[1] if path.is_dir() else path
    content = load_content(file)
    for layout in LAYOUTS:
        for within in layout.within:
            tensors = strip_wrappers(content if within == "" else content.get(within))
            if tensors and all(any(re.match(sign, name) for name in tensors) for sign in layout.signs):
                return _split_encoder(path, tensors, layout)
    raise ValueError(f"{str(path)!r} does not hold the plain state dict of an encoder: save encoder.state_dict() alone")


def strip_wrappers(content: Any) -> Weights | None:
    """Named tensors without the prefixes of wrappers; None for anything else."""
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        return None
    weights: Weights = content
    for wrapper in WRAPPERS:
        if weights and all(name.startswith(wrapper) for name in weights):
            weights = {name.removeprefix(wrapper): value for name, value in weights.items()}
    return weights


def _split_encoder(path: Path, tensors: Weights, layout: Layout) -> ForeignEncoder:
    weights: Weights = {}
    heads: Weights = {}
    unexpected = []
    for name, tensor in tensors.items():
        inside = re.match(layout.encoder, name)
        own = name[inside.end() :] if inside else name
        if any(re.match(head, own) for head in layout.heads):
            heads[own] = tensor
        elif inside:
            for pattern, replacement in layout.renames:
                own = re.sub(rf"^{pattern}", replacement, own)
            weights[own] = tensor
        else:
            unexpected.append(name)
    if unexpected:
        shown = ", ".join(unexpected[:KEYS_SHOWN]) + (" …" if len(unexpected) > KEYS_SHOWN else "")
        raise ValueError(
            f"{str(path)!r} is laid out like a checkpoint of {layout.project}, but {len(unexpected)} of its tensors "
            f"belong neither to the encoder nor to known heads ({shown}): save the encoder's state dict alone"
        )
    weights = _merge_qkv(weights)
    left_out = Counter(name.split(".")[0] for name in heads)
    source = f"{path}, in the layout of {layout.project}"
    without = ", ".join(f"{name} ({count} tensor{'s' * (count > 1)})" for name, count in sorted(left_out.items()))
    labels = True if layout.labels is None and any(re.match(CLASSIFIERS, name) for name in heads) else layout.labels
    attention, form, eps = layout.attention, layout.format, None
    depth: Depth | None = None
    if path.is_dir():
        config, form = _json(path / HF_FILES[0]), _hugging_face_format(path)
        # Networks with stages have lists of them, or one alone.
        width, count = config.get("hidden_size"), config.get("num_attention_heads")
        attention = {width: count} if isinstance(width, int) and isinstance(count, int) else {}
        eps = config.get("layer_norm_eps")
        blocks = config.get("depths", config.get("num_hidden_layers"))
        depth = None if blocks is None else tuple(blocks) if isinstance(blocks, list) else (blocks,)
    network = infer_network(weights, attention=attention, depth=depth)
    return ForeignEncoder(weights, heads, network, Provenance(source, None, labels, left_out=without), form, eps)


def _merge_qkv(weights: Weights) -> Weights:
    """The weights in timm's form: query, key and value in one matrix, and with registers the class token's
    position added to the token."""
    joined: Weights = {}
    for name, tensor in weights.items():
        if found := re.match(r"(.*\.attn\.)(query|key|value)\.(weight|bias)", name):
            parts = [weights.get(f"{found[1]}{part}.{found[3]}") for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                joined[f"{found[1]}qkv.{found[3]}"] = torch.cat([part for part in parts if part is not None])
                continue
        joined[name] = tensor
    if "register_tokens" in joined and {"cls_token", "pos_embed"} <= joined.keys():
        positions = joined["pos_embed"]
        joined["reg_token"] = joined.pop("register_tokens")
        joined["cls_token"] = joined["cls_token"] + positions[:, :1]
        joined["pos_embed"] = positions[:, 1:]
    return joined


def _hugging_face_format(folder: Path) -> ImageFormat | None:
    prepared = _json(folder / "preprocessor_config.json")
    if not {"image_mean", "image_std"} <= prepared.keys():
        return None
    crop = _side(prepared.get("crop_size") if prepared.get("do_center_crop", True) else None)
    resized = _side(prepared.get("size"))
    size = crop or resized or 224
    how: Interpolation = "bilinear" if prepared.get("resample", 2) == BILINEAR else "bicubic"
    mean, std = tuple(prepared["image_mean"]), tuple(prepared["image_std"])
    return ImageFormat(size, mean, std, how, size / max(size, resized or size))


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{str(file)!r} is not a JSON file: {error}") from error
    return found if isinstance(found, dict) else {}


def _side(size: Any) -> int | None:
    if isinstance(size, dict):
        size = size.get("shortest_edge", size.get("height"))
    return int(size) if isinstance(size, int | float) else None
