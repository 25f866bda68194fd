"""Encoders by name: the weights that a package carries, random ones when asked for, and one sentence otherwise."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
import torch

from hirl.data import open_images
from hirl.encoders import embedded
from hirl.encoders.embedded import DEFAULT_ENCODER, embedded_classifier
from hirl.encoders.encoder_file import load_weights
from hirl.encoders.weights_source import ImageFormat
from hirl.features.open_encoder import open_encoder
from hirl.features.preprocessing import describe, preprocessing_for


def test_the_default_encoder_has_the_weights_of_its_package() -> None:
    encoder = open_encoder(DEFAULT_ENCODER)
    assert (encoder.channels, encoder.mean, encoder.std) == (3, (0.5,) * 3, (0.5,) * 3)
    assert encoder.provenance is not None
    assert (encoder.provenance.licence, encoder.provenance.labels, encoder.provenance.random) == (
        "Apache-2.0", True, False,
    )  # fmt: skip
    classes = embedded_classifier()
    assert classes.names[281] == "tabby, tabby cat"
    # A yellow disc on blue is a ball or a fruit to a network that knows ImageNet, whatever its features are called.
    side = torch.linspace(-1, 1, 224)
    disc = (side[:, None] ** 2 + side**2 < 0.3).float()
    orange = torch.stack([disc, 0.55 * disc, 0.2 + 0 * disc]) * 2 - 1
    with torch.no_grad():
        features = encoder.network(orange[None])
    logits = features @ classes.weight.T + classes.bias
    assert features.shape == (1, 1280)
    assert float(logits.softmax(1).amax()) > 0.1


def test_weights_in_another_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_weights
    monkeypatch.setattr(embedded, "load_weights", lambda file: dict(list(load(file).items())[1:]))
    with pytest.raises(ValueError, match="does not hold the weights of tf_efficientnet_lite0: install"):
        open_encoder(DEFAULT_ENCODER)


def test_random_weights_are_asked_for_and_named() -> None:
    encoder = open_encoder("random:resnet10t", backbone_args={"channels": [8, 8, 8, 8]})
    assert encoder.name == "resnet10t, random weights"
    assert encoder.provenance is not None
    assert encoder.provenance.random
    assert encoder.sha256 == open_encoder("random:resnet10t", backbone_args={"channels": [8, 8, 8, 8]}).sha256
    assert open_encoder("random:torchvision:resnet18").name == "torchvision:resnet18, random weights"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "weights of resnet18 are not on this machine and could not be fetched .* by random:resnet18"),
        ("torchvision:resnet18", "weights of torchvision:resnet18 are not on this machine and could not be fetched"),
        ("vit_tiny_patch16_18x2_224", "no run folder or file"),
        ("test_vit4", "not on this machine|publishes no weights"),
    ],
)
def test_without_weights_a_name_is_refused(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        open_encoder(name)


def test_timm_weights_come_with_their_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched by timm: here from a dictionary in place of a cache."""
    import timm

    create = timm.create_model
    there = create("vit_tiny_patch16_224", num_classes=0, img_size=224)

    def cached(name: str, pretrained: bool = False, **options: Any) -> torch.nn.Module:
        network: torch.nn.Module = create(name, **options)
        if pretrained:
            network.load_state_dict(there.state_dict())
        return network

    monkeypatch.setattr(timm, "create_model", cached)
    encoder = open_encoder("vit_tiny_patch16_224.augreg_in21k")
    assert all(
        torch.equal(a, b)
        for a, b in zip(encoder.network.state_dict().values(), there.state_dict().values(), strict=True)
    )
    assert (
        str(encoder.provenance)
        == "timm's weights vit_tiny_patch16_224.augreg_in21k, licence apache-2.0, trained with labels"
    )
    assert encoder.format == ImageFormat(224, (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9)


@pytest.mark.parametrize(("side", "used"), [(32, 96), (128, 128), (500, 224)])
def test_small_images_are_enlarged(side: int, used: int) -> None:
    encoder = open_encoder(DEFAULT_ENCODER)
    images = open_images(np.zeros((2, side, side, 3), np.uint8))
    preprocessing = preprocessing_for(encoder, images)
    assert (preprocessing.size, preprocessing.interpolation, preprocessing.crop) == (used, "bicubic", 0.875)
    assert describe(encoder, preprocessing).endswith(f"images are resized to {used} × {used} pixels")


def test_patches_and_fixed_sizes() -> None:
    form = ImageFormat(518, (0.5,) * 3, (0.5,) * 3)
    assert form.size_for(32, patch=14) == 98
    assert form.size_for(2000, patch=14) == 518
    assert ImageFormat(224, (0.5,) * 3, (0.5,) * 3, fixed=True).size_for(32) == 224
