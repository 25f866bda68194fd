"""Backbones are timm's own networks: any image size, tokens split rightly, wrong names answered with near ones."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from hirl.encoders.backbones import (
    feature_maps,
    has_tokens,
    make_backbone,
    masked_tokens,
    open_residual_branches,
    outline,
    patch_size,
    timm_arguments,
    tokens,
    width,
)

TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
NARROW: dict[str, Any] = {"channels": [8, 8, 16, 16]}


@pytest.mark.parametrize(
    ("name", "args", "wide"),
    [
        ("resnet18", NARROW, 16),
        ("vit_tiny_patch16_224", TINY, 32),
        ("vit_tiny_patch16_224", TINY | {"reg_tokens": 3}, 32),
        ("vit_tiny_patch16_224", TINY | {"class_token": False, "global_pool": "avg"}, 32),
        ("deit_tiny_distilled_patch16_224", TINY, 32),
        ("mobilenetv3_small_050", {}, 1024),
    ],
)
def test_pooled_features_and_strict_weights(name: str, args: dict[str, Any], wide: int) -> None:
    backbone = make_backbone(name, in_chans=1, **args).eval()
    images = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        features = backbone(images)
        assert features.shape == (2, wide) == (2, width(backbone))
        plain = timm.create_model(name, num_classes=0, in_chans=1, **timm_arguments(name, **args)).eval()
        plain.load_state_dict(backbone.state_dict(), strict=True)
        torch.testing.assert_close(plain(images), features)


def test_the_bare_name_takes_the_weights() -> None:
    plain = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    plain.load_state_dict(make_backbone("vit_tiny_patch16_224").state_dict(), strict=True)


@pytest.mark.parametrize(
    "extra", [{}, {"reg_tokens": 3}, {"reg_tokens": 2, "class_token": False, "global_pool": "avg"}]
)
def test_patch_tokens_follow_their_patches(extra: dict[str, Any]) -> None:
    """Without blocks a token knows its own patch alone, so a changed patch must show in its token and no other."""
    backbone = make_backbone("vit_tiny_patch16_224", **TINY | {"depth": 0} | extra).eval()
    images = torch.randn(2, 3, 32, 32)
    changed = images.clone()
    changed[:, :, 8:16, 16:24] += 1  # row 1, column 2 of 4 × 4 patches
    with torch.no_grad():
        pooled, patches = tokens(backbone, images)
        torch.testing.assert_close(pooled, backbone(images))
        assert patches.shape == (2, 16, 32)
        moved = (tokens(backbone, changed)[1] != patches).any(2)
    assert moved[0].nonzero().flatten().tolist() == [1 * 4 + 2]


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"dynamic_img_size": False}),
        ("vit_tiny_patch16_224", {"reg_tokens": 2, "pre_norm": True, "no_embed_class": True}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_hidden_patches(name: str, extra: dict[str, Any]) -> None:
    """Nothing hidden is `tokens`; of a hidden patch the place is known and what it shows is not."""
    backbone = make_backbone(name, **TINY | extra).eval()
    images, token = torch.randn(2, 3, 32, 32), torch.randn(1, 32)
    hidden = torch.zeros(2, 4, 4, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(masked_tokens(backbone, images, hidden, token), tokens(backbone, images))
        hidden[0, 1, 2] = True
        changed = images.clone()
        changed[0, :, 8:16, 16:24] += 1
        masked = masked_tokens(backbone, images, hidden, token)
        torch.testing.assert_close(masked_tokens(backbone, changed, hidden, token), masked)
        assert not torch.allclose(masked[1][0], tokens(backbone, images)[1][0])
        torch.testing.assert_close(masked[1][1], tokens(backbone, images)[1][1])
        hidden[:] = True
        places = masked_tokens(backbone, images, hidden, token)[1][0]
    assert len(places.unique(dim=0)) == 16


def test_hidden_patches_of_other_sizes_and_wrong_masks() -> None:
    backbone = make_backbone("vit_tiny_patch16_224", **TINY)
    images, token = torch.randn(1, 3, 48, 48), torch.zeros(1, 32)
    assert masked_tokens(backbone, images, torch.ones(1, 6, 6, dtype=torch.bool), token)[1].shape == (1, 36, 32)
    with pytest.raises(
        ValueError, match=r"a mask is \(1, 4, 4\), but must have a value for each patch of \(1, 3, 48, 48\)"
    ):
        masked_tokens(backbone, images, torch.ones(1, 4, 4, dtype=torch.bool), token)
    with pytest.raises(ValueError, match="ResNet has no patches to hide: choose a plain vision transformer"):
        masked_tokens(make_backbone("resnet18", **NARROW), images, torch.ones(1, 6, 6, dtype=torch.bool), token)


def test_residual_branches_can_start_open() -> None:
    for args, start in (({}, 0), (open_residual_branches("resnet18"), 1)):
        gain = make_backbone("resnet18", **NARROW, **args).get_submodule("layer1.0.bn2").weight
        assert isinstance(gain, torch.Tensor)
        assert bool((gain == start).all())
    assert open_residual_branches("vit_tiny_patch16_224") == {}


def test_local_crops_and_other_sizes() -> None:
    backbone = make_backbone("vit_tiny_patch16_224", **TINY)
    for size in (16, 32, 48):
        assert tokens(backbone, torch.randn(1, 3, size, size))[1].shape == (1, (size // 8) ** 2, 32)


def test_drop_path_is_an_option_that_leaves_the_weights_alone() -> None:
    def dropped(backbone: nn.Module) -> list[float]:
        return [module.drop_prob for module in backbone.modules() if type(module).__name__ == "DropPath"]  # type: ignore[misc]

    plain, dropping = (make_backbone("vit_tiny_patch16_224", drop_path=rate, **TINY) for rate in (0.0, 0.2))
    assert dropped(plain) == []
    assert max(dropped(dropping)) == pytest.approx(0.2)
    plain.load_state_dict(dropping.state_dict(), strict=True)


def test_an_outline_has_no_weights() -> None:
    network = outline("vit_base_patch16_224")
    assert {parameter.device.type for parameter in network.parameters()} == {"meta"}
    assert (width(network), patch_size(network), has_tokens(network)) == (768, 16, True)
    assert patch_size(outline("resnet18")) is None


def test_convolutions_keep_the_channels_of_a_pixel_together() -> None:
    weight = make_backbone("resnet18", **NARROW).get_submodule("layer1.0.conv1").weight
    assert isinstance(weight, torch.Tensor)
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "vit_smal_patch16_224"}, "close matches are .*vit_small_patch16_224"),
        ({"name": "0"}, "'0' is not the name of a timm model: see timm.list_models"),
        ({"name": "hf_hub:somebody/something"}, "is not the name of a timm model"),
        ({"name": "resnet18", "drop_path": 1.0}, "drop_path is 1.0, but must be at least 0 and below 1"),
        ({"name": "resnet18", "pretrained": True}, "may not set pretrained"),
        ({"name": "resnet18", "wings": 2}, "'resnet18' cannot be made with {'wings': 2}: .*'wings'"),
        ({"name": "vit_tiny_patch16_224", "embed_dim": 32}, "cannot be made with .*'embed_dim': 32"),
    ],
)
def test_what_cannot_be_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_backbone(**arguments)


def test_a_network_without_tokens_says_so() -> None:
    with pytest.raises(ValueError, match="ResNet has no tokens: choose a vision transformer"):
        tokens(make_backbone("resnet18", **NARROW), torch.randn(1, 3, 32, 32))


def test_feature_maps_of_a_cnn() -> None:
    """A map per stage; the last one, pooled, is the feature."""
    backbone = make_backbone("resnet18", **NARROW).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        maps = feature_maps(backbone, images)
        assert [64 // found.shape[2] for found in maps] == [2, 4, 8, 16, 32]
        assert [96 // found.shape[3] for found in maps] == [2, 4, 8, 16, 32]
        torch.testing.assert_close(maps[-1].mean((2, 3)), backbone(images))
        assert [found.shape[1] for found in feature_maps(backbone, images, layers=[1, 4])] == [8, 16]


@pytest.mark.parametrize("extra", [{}, {"reg_tokens": 3}])
def test_feature_maps_of_a_transformer(extra: dict[str, Any]) -> None:
    """The patch tokens in their places, at any image size."""
    backbone = make_backbone("vit_tiny_patch16_224", **TINY | extra).eval()
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        (last,) = feature_maps(backbone, images)
        assert last.shape == (2, 32, 4, 6)
        torch.testing.assert_close(last.flatten(2).mT, tokens(backbone, images)[1])
        first, same = feature_maps(backbone, images, layers=[0, 1])
    torch.testing.assert_close(same, last)
    assert not torch.allclose(first, last)


def test_feature_maps_learn_and_are_refused_where_there_are_none() -> None:
    backbone = make_backbone("resnet18", **NARROW)
    feature_maps(backbone, torch.randn(2, 3, 32, 32))[-1].sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    with pytest.raises(ValueError, match="backbone Identity has no feature maps: choose a timm network"):
        feature_maps(nn.Identity(), torch.randn(2, 3, 32, 32))
