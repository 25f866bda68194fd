"""Starting from given weights: of another run, or of a plain encoder file. All of them fit, or none is taken."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hirl.methods.base import Method
from hirl.runs.folder import Run

SHOWN = 5  # keys named in a message


def start_from(method: Method, source: str) -> None:
    """Puts the weights at `source`, a run folder or an encoder's file, into every copy of the method's encoder."""
    weights = encoder_weights(source)
    for encoder in method.encoder_copies:
        check_fit(encoder, weights, source, method.backbone)
        encoder.load_state_dict(weights, strict=True)


def encoder_weights(source: str) -> dict[str, Tensor]:
    """The named tensors of a run's encoder, a .safetensors file or a state dict saved by torch, read without pickle."""
    path = Path(source).expanduser()
    if path.is_dir():
        return Run(path).encoder_weights()[0]
    if not path.is_file():
        raise ValueError(f"there is no run folder and no encoder file {source!r} to start from")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{source!r} is no safetensors file, or is cut short: {error}") from error
    import pickle
    import warnings

    try:
        with warnings.catch_warnings():  # of pickles, on the way to refuse them
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise ValueError(
            f"{source!r} is no file of plain weights: it holds more than tensors, or is damaged"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{source!r} holds no plain state dict of an encoder: save encoder.state_dict() alone")
    return state


def check_fit(encoder: nn.Module, weights: dict[str, Tensor], source: str, backbone: str) -> None:
    """A ValueError that lists the keys if the weights are not exactly the encoder's."""
    own = encoder.state_dict()
    faults = {
        "missing": sorted(own.keys() - weights.keys()),
        "unknown": sorted(weights.keys() - own.keys()),
        "of another shape": sorted(key for key in own.keys() & weights.keys() if own[key].shape != weights[key].shape),
    }
    told = [
        f"{len(keys)} {kind} ({', '.join(keys[:SHOWN])}{' …' if len(keys) > SHOWN else ''})"
        for kind, keys in faults.items()
        if keys
    ]
    if told:
        raise ValueError(f"the weights in {source!r} do not fit {backbone}: {'; '.join(told)}; they must match fully")


def network_hash(weights: dict[str, Any], *about: Any) -> str:
    """sha256 of named tensors, whatever their order, and of what else makes the network (plain data)."""
    found = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
