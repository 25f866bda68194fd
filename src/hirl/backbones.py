"""Backbones by their timm names: images in, pooled features out, and for transformers the tokens as well.

What `make_backbone` returns is timm's own module, so its state dict loads with strict=True into
`timm.create_model(name, num_classes=0, **the same arguments)`. Nothing is downloaded: weights start at random.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# The families that can resample their positions to the size of the images in hand: local crops need it.
_ANY_SIZE = ("vision_transformer", "vision_transformer_hybrid", "deit", "eva")
_OURS = {"num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "drop_path_rate"}


def make_backbone(name: str, *, drop_path: float = 0.0, **args: Any) -> nn.Module:
    """The module whose forward takes images (B, C, H, W) to pooled features (B, width).

    `args` goes to timm as it is: `img_size=32, patch_size=4` for a transformer on small images,
    `channels=[32, 64, 128, 256]` for a narrow ResNet, `in_chans=1` for grey images.
    """
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
        choices = f"close matches are {', '.join(near)}" if near else "timm.list_models() lists them"
        raise ValueError(f"backbone {name!r} is not the name of a timm model: {choices}.")
    if not 0 <= drop_path < 1:
        raise ValueError(f"drop_path is {drop_path}, but must be at least 0 and below 1.")
    if taken := sorted(_OURS & set(args)):
        raise ValueError(f"backbone_args may not set {', '.join(taken)}: hirl sets these itself.")
    settled = timm_arguments(name, **args)
    if drop_path:
        settled["drop_path_rate"] = drop_path
    try:
        backbone: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **settled)
    except (AssertionError, TypeError, ValueError) as error:
        reason = str(error) or "timm refuses the combination"
        raise ValueError(f"backbone {name!r} cannot be made with {settled}: {reason}.") from error
    # Convolutions are faster when the channels of a pixel lie side by side; a transformer has but one of them.
    if not has_tokens(backbone):
        backbone.to(memory_format=torch.channels_last)
    return backbone


def timm_arguments(name: str, **args: Any) -> dict[str, Any]:
    """What `timm.create_model` is told beside the name and num_classes=0 for a network of the same weights."""
    import timm

    return ({"dynamic_img_size": True} if timm.models.is_model_in_modules(name, _ANY_SIZE) else {}) | args


def outline(name: str, **args: Any) -> nn.Module:
    """The module without memory for its weights: enough to ask for its width or patch size."""
    with torch.device("meta"):
        return make_backbone(name, **args)


def width(backbone: nn.Module) -> int:
    """The number of pooled features."""
    # Where timm's head keeps a hidden layer without classes (MobileNet), its width is that of the output.
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]


def has_tokens(backbone: nn.Module) -> bool:
    return hasattr(backbone, "num_prefix_tokens")


def patch_size(backbone: nn.Module) -> int | None:
    """The side in pixels of what a transformer makes a token of, None for a network without tokens."""
    return int(backbone.patch_embed.feat_ratio()) if has_tokens(backbone) else None  # type: ignore[union-attr,operator]


def open_residual_branches(name: str) -> dict[str, Any]:
    """What timm is told for a ResNet whose residual branches do not start at 0, as they do in timm."""
    import timm

    is_resnet = timm.is_model(name) and timm.models.is_model_in_modules(name, ["resnet"])
    return {"zero_init_last": False} if is_resnet else {}


def tokens(backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """What forward gives (B, width), which is [CLS] where timm pools by it, and the patch tokens (B, T, width).

    Register and distillation tokens are in neither.
    """
    if not has_tokens(backbone):
        kind = type(backbone).__name__
        raise ValueError(f"backbone {kind} has no tokens: choose a vision transformer, e.g. vit_small_patch16_224.")
    return _pooled_and_patches(backbone, backbone.forward_features(images))  # type: ignore[operator]


def feature_maps(backbone: nn.Module, images: Tensor, *, layers: Sequence[int] | None = None) -> list[Tensor]:
    """Dense feature maps (B, C, h, w) of images (B, C, H, W), in the order of the layers.

    A CNN has a map per stage, at strides such as 4, 8, 16 and 32; by default all of them. A transformer has a map per
    block, all at the stride of its patches, with the final norm applied; by default that of the last block.
    """
    intermediates = getattr(backbone, "forward_intermediates", None)
    if intermediates is None:
        kind = type(backbone).__name__
        raise ValueError(f"backbone {kind} has no feature maps: choose a timm network such as resnet50.")
    if layers is None:
        layers = [-1] if has_tokens(backbone) else None
    found: list[Tensor] = intermediates(
        images, indices=None if layers is None else list(layers), norm=has_tokens(backbone), intermediates_only=True
    )
    return found


def masked_tokens(backbone: nn.Module, images: Tensor, hidden: Tensor, mask_token: Tensor) -> tuple[Tensor, Tensor]:
    """`tokens` of images with patches hidden: `mask_token` (1, width) stands for what they show, not where they are.

    hidden: (B, h, w) bool, a value a patch. Nothing hidden gives what `tokens` gives.
    """
    check_maskable(backbone)
    vit: Any = backbone
    patches = vit.patch_embed(images)  # (B, h, w, width); (B, T, width) for a network of one image size
    if hidden.numel() != patches[..., 0].numel():
        raise ValueError(f"a mask is {tuple(hidden.shape)}, but needs a value for each patch of {tuple(images.shape)}.")
    seen = torch.where(hidden.view(*patches.shape[:-1], 1), mask_token.to(patches.dtype), patches)
    features = vit.norm(vit.blocks(vit.norm_pre(vit.patch_drop(vit._pos_embed(seen)))))
    return _pooled_and_patches(backbone, features)


def check_maskable(backbone: nn.Module) -> None:
    """A ValueError unless `masked_tokens` takes the backbone: its forward pass must be that of timm's plain ViT."""
    from timm.models.vision_transformer import VisionTransformer

    if getattr(type(backbone), "forward_features", None) is not VisionTransformer.forward_features:
        kind = type(backbone).__name__
        raise ValueError(
            f"backbone {kind} has no patches to hide: choose a plain vision transformer, e.g. vit_small_patch16_224."
        )


def _pooled_and_patches(backbone: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    pooled: Tensor = backbone.forward_head(features)  # type: ignore[operator]
    return pooled, features[:, backbone.num_prefix_tokens :]
