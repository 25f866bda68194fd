"""The published views of the methods, sized to the images."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hirl.encoders import backbones
from hirl.methods import DINO, IBOT, Method, MoCoV2, MoCoV3, SwAV

from ..small_methods import METHODS, NAMES

PATCHED = [name for name, kind in METHODS.items() if backbones.patch_size(kind().backbone_outline)]
CROPPED = [name for name, kind in METHODS.items() if "local_crops" in kind().arguments]


def with_patches(name: str, patch: int, **arguments: Any) -> Method:
    if name in PATCHED:
        arguments["backbone_args"] = {"img_size": 224, "patch_size": patch}
    return METHODS[name](**arguments)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "local"), [(32, 16), (64, 24), (96, 40), (224, 96)])
def test_sizes_masks_and_blur(name: str, size: int, local: int) -> None:
    """Global views first, then local ones, which are never masked; small images would be erased by blur."""
    method = with_patches(name, 8)
    views = method.views(size)
    crops = method.arguments.get("local_crops", 0)
    assert len(views) > crops
    assert [view.size for view in views] == [size] * (len(views) - crops) + [local] * crops
    assert all(view.mask is None for view in views if view.size < size)
    assert size >= 64 or all(view.blur is None for view in views)


@pytest.mark.parametrize("name", CROPPED)
def test_number_and_size_of_local_crops_are_arguments(name: str) -> None:
    views = with_patches(name, 8, local_crops=3, local_size=16).views(64)
    assert [view.size for view in views] == [64, 64, 16, 16, 16]


def test_published_figures() -> None:
    assert MoCoV2().views(224)[0].scale == (0.2, 1.0)
    assert SwAV().views(224)[2].scale == (0.05, 0.14)
    assert [view.solarise for view in DINO().views(224)[:3]] == [0.0, 0.2, 0.0]
    assert [view.blur.probability for view in DINO().views(224)[:3] if view.blur] == [1.0, 0.1, 0.5]


@pytest.mark.parametrize("name", PATCHED)
def test_a_size_that_cuts_patches_is_refused_before_building(name: str) -> None:
    with pytest.raises(ValueError, match="views of 50 pixels do not consist of whole patches of 16 pixels"):
        with_patches(name, 16).views(50)


@pytest.mark.parametrize(
    ("backbone", "args", "patch"),
    [
        ("vit_base_patch16_224", None, 16),
        ("vit_base_patch16_224", {"img_size": 32, "patch_size": 4}, 4),
        ("vit_small_patch14_dinov2", {"img_size": 224}, 14),  # the name's 518 pixels do not matter
        ("flexivit_small", None, 16),  # no patch size in the name
        ("vit_tiny_r_s16_p8_224", {"depth": 1}, 32),  # a stem of stride 4, then patches of 8
    ],
)
def test_masks_follow_the_patches_of_any_vision_transformer(backbone: str, args: dict[str, Any], patch: int) -> None:
    view = IBOT(backbone=backbone, backbone_args=args).views(14 * 32)[0]
    assert view.mask is not None
    assert view.mask.patch == patch


def test_views_make_no_network_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outline that gives the patch size is made once per backbone and arguments."""
    made: list[str] = []
    make = backbones.make_backbone

    def counted(name: str, **args: Any) -> nn.Module:
        made.append(name)
        return make(name, **args)

    monkeypatch.setattr(backbones, "make_backbone", counted)
    backbones._OUTLINES.clear()
    for method in (DINO(), DINO(local_crops=2), IBOT(), MoCoV3(backbone="vit_base_patch16_224")):
        for size in (32, 64):
            method.views(size)
    assert made == ["vit_base_patch16_224"]
    DINO(backbone_args={"depth": 1}).views(32)
    assert len(made) == 2
