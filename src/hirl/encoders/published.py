"""Published weights of networks by name: those in a package, timm's and torchvision's; else a ValueError that
says why.

timm and torchvision keep what they fetch in a cache on this machine, from which they take it without a network.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from torch import nn

from hirl.encoders.backbones import make_backbone, timm_arguments
from hirl.encoders.embedded import DEFAULT_ENCODER, PROVENANCE, embedded_weights
from hirl.encoders.encoder_file import fit_weights
from hirl.encoders.torchvision_networks import make_torchvision
from hirl.encoders.weights_source import RANDOM, ImageFormat, Interpolation, Provenance

Named = tuple[nn.Module, Provenance, ImageFormat | None]  # the format is known for published weights alone
TORCHVISION = "torchvision:"
RANDOM_PREFIX = "random:"
# In timm's tags of weights that were trained without labels; "ft_" marks labels that came afterwards.
WITHOUT_LABELS = ("dino", "mae", "lvd142m", "lvd1689m", "sat493m", "ijepa", "fcmae")


class NoWeights(ValueError):  # noqa: N818
    """There are no published weights of a name, or they cannot be fetched; `reason` is the message without advice."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(self.advise("--weights"))

    def advise(self, option: str) -> str:
        """The message, which advises to name a file with this option of the command at hand."""
        instead = f"use {DEFAULT_ENCODER}, or ask for random weights by {RANDOM_PREFIX}{self.name}"
        return f"{self.reason}: name a file with {option}, {instead}"


def named_encoder(name: str, args: dict[str, Any]) -> Named:
    """The network of a timm name, `torchvision:NAME`, or either after `random:`; a ValueError if there are no weights.

    `args`: further arguments of the network.
    """
    if name.startswith(RANDOM_PREFIX):
        plain = name.removeprefix(RANDOM_PREFIX)
        if plain.startswith(TORCHVISION):
            return make_torchvision(plain.removeprefix(TORCHVISION), args), RANDOM, None
        return make_backbone(plain, **args), RANDOM, None
    if name.startswith(TORCHVISION):
        return _torchvision(name, args)
    if name == DEFAULT_ENCODER:
        network = make_backbone(name, **args)
        fit_weights(network, embedded_weights(), source=PROVENANCE.source, name=name)
        return network, PROVENANCE, _timm_format(network.pretrained_cfg)
    return _timm(name, args)


def _timm(name: str, args: dict[str, Any]) -> Named:
    import timm

    network = make_backbone(name, **args)  # a wrong name or argument is refused before anything is fetched
    config: Any = network.pretrained_cfg
    if not (config.get("hf_hub_id") or config.get("url")):
        raise NoWeights(name, f"timm publishes no weights of {name}")
    arguments = timm_arguments(name, **args)
    try:
        with _without_waiting():
            network = timm.create_model(name, pretrained=True, num_classes=0, **arguments)
    except Exception as error:  # of a network connection, of a cache, or weights of another shape
        raise _not_available(name, error) from error
    tag = str(config.get("tag") or "")
    source = f"timm's weights {name if '.' in name or not tag else f'{name}.{tag}'}"
    form = _timm_format(config, any_size=arguments.get("dynamic_img_size", False))
    return network, Provenance(source, config.get("license"), _used_labels(tag)), form


def _used_labels(tag: str) -> bool | None:
    """Whether labels were used to train timm's weights of this tag, which is all that timm says about it."""
    if "ft_" not in tag and any(part in tag for part in WITHOUT_LABELS):
        return False
    return True if re.search(r"in\d+k", tag) else None


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Keep the Hugging Face library to its cache where its host cannot be found: it would try for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _timm_format(config: Any, *, any_size: bool = False) -> ImageFormat:
    return ImageFormat(
        size=int(config["input_size"][-1]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=_interpolation(str(config["interpolation"])),
        crop=float(config["crop_pct"]),
        fixed=bool(config.get("fixed_input_size")) and not any_size,
    )


def _torchvision(full_name: str, args: dict[str, Any]) -> Named:
    from torchvision.models import get_model_weights

    name = full_name.removeprefix(TORCHVISION)
    make_torchvision(name, args)  # a wrong name is refused before anything is fetched
    weights = get_model_weights(name).DEFAULT
    try:
        network = make_torchvision(name, args, weights.get_state_dict(check_hash=True), source=weights.url)
    except Exception as error:
        raise _not_available(full_name, error) from error
    prepared = weights.transforms()
    side, before = prepared.crop_size[0], prepared.resize_size[0]
    how = _interpolation(prepared.interpolation.value)
    # Those of torchvision's networks that have a fixed number of positions take one size alone.
    fixed = bool(weights.meta.get("min_size", (1, 1))[0] >= side)
    form = ImageFormat(side, tuple(prepared.mean), tuple(prepared.std), how, side / before, fixed)
    return network, Provenance(f"torchvision's weights {weights}", None, labels=True), form


def _interpolation(name: str) -> Interpolation:
    return "bilinear" if name == "bilinear" else "bicubic"


def _not_available(name: str, error: Exception) -> NoWeights:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    reason = re.split(r"(?<=\.)\s+(?=[A-Z])", line)[0].rstrip(".")  # the first sentence
    return NoWeights(
        name, f"the published weights of {name} are not on this machine and could not be fetched ({reason})"
    )
