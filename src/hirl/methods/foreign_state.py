"""The complete state of a method from a checkpoint of its authors: encoders, heads, queue and centre.

With it a run begins where theirs ended, as the stage one of HIRL: `load_foreign_state(method, file)` after `build`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hirl.encoders.checkpoints import unwrapped
from hirl.encoders.encoder_file import Weights, fit_weights, load_content
from hirl.methods.base import Method

NOWHERE = ""  # for tensors that have no counterpart here
_MOCO_V2 = (
    (r"encoder_q\.fc\.", "query.head.layers."),
    (r"encoder_q\.", "query.backbone."),
    (r"encoder_k\.fc\.", "key.head.layers."),
    (r"encoder_k\.", "key.backbone."),
    (r"queue_ptr", NOWHERE),  # here the oldest keys come first
)
_DINO = (
    (r"head\.last_layer\.weight_g", NOWHERE),  # checked to be 1: rows of unit length
    (r"head\.last_layer\.weight_v", "{network}.head.last_layer.weight"),
    (r"(backbone|head)\.", r"{network}.\1."),
)
# By method: the dictionaries in the file, and from the names there to the names here.
STATES: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "MoCoV2": {"state_dict": _MOCO_V2},
    "DINO": {
        **{
            network: tuple((pattern, to.replace("{network}", network)) for pattern, to in _DINO)
            for network in ("student", "teacher")
        },
        "dino_loss": ((r"center", "centre"),),
    },
}


def load_foreign_state(method: Method, file: Path) -> None:
    """Load all tensors of the method's authors' checkpoint into its networks, or raise a ValueError and load none."""
    kind = type(method).__name__
    if kind not in STATES:
        raise ValueError(f"checkpoints of {kind} are not known with their heads: choose one of {', '.join(STATES)}")
    content = load_content(file)
    own = method.state_dict()
    found: Weights = {}
    for within, renames in STATES[kind].items():
        tensors = unwrapped(content.get(within))
        if tensors is None:
            raise ValueError(f"{str(file)!r} has no tensors {within!r}, which a checkpoint of {kind} has")
        for name, tensor in tensors.items():
            place = _place(name, renames)
            if place != NOWHERE:
                found[place] = _shaped(tensor, own.get(place))
            elif name.endswith("weight_g") and not torch.allclose(tensor, torch.ones_like(tensor)):
                raise ValueError(f"{name} of {str(file)!r} is not 1: prototypes have unit length here")
    fit_weights(method, found, source=str(file), name=kind)


def _place(name: str, renames: tuple[tuple[str, str], ...]) -> str:
    for pattern, to in renames:
        if re.match(pattern, name):
            return NOWHERE if to == NOWHERE else re.sub(rf"^{pattern}", to, name)
    return name


def _shaped(tensor: Tensor, own: Any) -> Tensor:
    """Without the first dimension of a centre (1, K), and with a queue (D, K) as (K, D)."""
    if isinstance(own, Tensor) and tensor.shape != own.shape:
        if tensor.shape == (1, *own.shape):
            return tensor[0]
        if tensor.ndim == 2 and tensor.T.shape == own.shape:
            return tensor.T.contiguous()
    return tensor
