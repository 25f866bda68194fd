"""An encoder on disk: save, load, fit, hash and metadata. Weights fit completely or are refused.

hirl writes safetensors files whose metadata name the network. Files from elsewhere, a .safetensors file or a state
dict saved by torch, have weights alone. All of them are read without unpickling code.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from hirl.encoders.backbones import make_backbone
from hirl.encoders.weights_source import Provenance
from hirl.files import CHECKSUM, atomic_write, verify

FORMAT = "hirl encoder 1"
KEYS_SHOWN = 5  # per kind of mismatch in a message
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class EncoderMetadata:
    """Which network an encoder is, and how the images it was trained on were prepared."""

    backbone: str
    backbone_args: dict[str, Any]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    provenance: Provenance | None = None  # of a network that did not start from nothing

    @property
    def network(self) -> dict[str, Any]:
        """The name and arguments of the network, by which it is hashed and described."""
        return {"backbone": self.backbone, "backbone_args": self.backbone_args}

    @classmethod
    def read(cls, text: str) -> EncoderMetadata | None:
        """From the text in a file; None if hirl did not write it."""
        try:
            found = json.loads(text)
            found.pop("checksum", None)
            if found.pop("format") != FORMAT:
                return None
            found["provenance"] = Provenance.read(found.get("provenance"))
            return cls(**found | {name: tuple(found[name]) for name in ("mean", "std")})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def save_encoder(path: Path, encoder: nn.Module, metadata: EncoderMetadata) -> None:
    from safetensors.torch import save_file

    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    # One key: safetensors writes several in a random order, and the file should have the same bytes each time.
    known = {name: value for name, value in asdict(metadata).items() if value is not None}
    about = json.dumps({"checksum": CHECKSUM, "format": FORMAT} | known)
    with atomic_write(path, checksum=True) as aside:
        save_file(weights, aside, metadata={"about": about})


def load_encoder(path: Path) -> tuple[Weights, EncoderMetadata]:
    """The weights and metadata of a file that hirl wrote."""
    weights, metadata = load_weights(path), load_metadata(path)
    if metadata is None:
        raise ValueError(f"{str(path)!r} is not an encoder written by hirl: its metadata do not name the network")
    return weights, metadata


def load_weights(path: Path) -> Weights:
    """The named tensors of a .safetensors file or of a state dict saved by torch."""
    state = load_content(path)
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(
            f"{str(path)!r} does not hold the plain state dict of an encoder: save encoder.state_dict() alone"
        )
    return state


def load_content(path: Path) -> dict[str, Any]:
    """What is in a .safetensors file or in a file saved by torch, which may hold dictionaries in a dictionary."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        verify(path)
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise _unreadable(path, error) from error
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([Namespace]):
            warnings.simplefilter("ignore")  # torch warns of a pickle before it refuses it
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # torch fails in many ways on a damaged file
        raise ValueError(f"{str(path)!r} is not a file of plain weights: {_reason(path, error)}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{str(path)!r} holds a {type(state).__name__}, but must hold a state dict of named tensors")
    return state


def _reason(path: Path, error: Exception) -> str:
    """Why torch did not open a file, which its own messages tell in many lines or wrongly."""
    with path.open("rb") as file:
        is_pickle = file.read(1) == b"\x80"
    if isinstance(error, UnpicklingError) and (is_pickle or is_zipfile(path)):
        return "it holds objects besides tensors, and opening them would run code; save its weights alone"
    return "torch did not save it, or it is truncated or damaged"


def load_metadata(path: Path) -> EncoderMetadata | None:
    """The metadata of an encoder file that hirl wrote; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return EncoderMetadata.read((file.metadata() or {}).get("about", ""))
    except SafetensorError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{str(path)!r} is not a safetensors file, or is truncated: {error}")


def make_encoder(weights: Weights, metadata: EncoderMetadata, *, source: str) -> nn.Module:
    """The network that the metadata name, with these weights, in eval mode."""
    encoder = make_backbone(metadata.backbone, **metadata.backbone_args)
    fit_weights(encoder, weights, source=source, name=metadata.backbone)
    return encoder.eval()


def fit_weights(network: nn.Module, weights: Weights, *, source: str, name: str) -> None:
    """Load the weights into the network, or raise a ValueError that lists the keys which do not fit."""
    own = network.state_dict()
    mismatches = {
        "missing": sorted(own.keys() - weights.keys()),
        "unknown": sorted(weights.keys() - own.keys()),
        "of another shape": sorted(key for key in own.keys() & weights.keys() if own[key].shape != weights[key].shape),
    }
    found = [
        f"{len(keys)} {kind} ({', '.join(keys[:KEYS_SHOWN])}{' …' if len(keys) > KEYS_SHOWN else ''})"
        for kind, keys in mismatches.items()
        if keys
    ]
    if found:
        raise ValueError(f"the weights in {source!r} do not fit {name}: {'; '.join(found)}; they must match completely")
    network.load_state_dict(weights, strict=True)


def network_hash(weights: dict[str, Any], *about: Any) -> str:
    """sha256 of named tensors in any order, and of plain data that describes the rest of the network."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name in sorted(name for name, value in weights.items() if isinstance(value, Tensor)):
        tensor = weights[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
