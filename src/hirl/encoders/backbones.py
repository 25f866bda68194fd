"""Backbones by their timm names: images to pooled features and, for transformers, to tokens.

`make_backbone` returns timm's own module, so its state dict loads with strict=True into
`timm.create_model(name, num_classes=0, **the same arguments)`. Nothing is downloaded: weights are initialised randomly.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hirl.encoders.adapter import AdaptedNetwork

# Families that can resample their position embeddings to the size of the input, which local crops require.
_ANY_SIZE = ("vision_transformer", "vision_transformer_hybrid", "deit", "eva")
_OWN = {"num_classes", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "drop_path_rate"}


_OUTLINES: dict[str, nn.Module] = {}


class UnknownBackbone(ValueError):  # noqa: N818 (a ValueError to all but those who offer other choices)
    """A name that timm does not know."""


def is_timm_name(name: str) -> bool:
    import timm

    return bool(timm.is_model(name))


def make_backbone(
    name: str, *, drop_path: float = 0.0, adapter: int | None = None, adapter_dropout: float = 0.0, **args: Any
) -> nn.Module:
    """Make a network that maps images (B, C, H, W) to pooled features (B, width).

    `args` is passed to timm unchanged: `img_size=32, patch_size=4` for a transformer on small images,
    `channels=[32, 64, 128, 256]` for a narrow ResNet, `in_chans=1` for greyscale images.
    `adapter`: freeze the network and put an adapter with a hidden layer of this width on its features, of which it sees
    all but the share `adapter_dropout` in training.
    """
    import timm

    if not is_timm_name(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
        choices = f"close matches are {', '.join(near)}" if near else "see timm.list_models()"
        raise UnknownBackbone(f"backbone {name!r} is not the name of a timm model: {choices}")
    if not 0 <= drop_path < 1:
        raise ValueError(f"drop_path is {drop_path}, but must be at least 0 and below 1")
    if reserved := sorted(_OWN & set(args)):
        raise ValueError(f"backbone_args may not set {', '.join(reserved)}: hirl sets these itself")
    arguments = timm_arguments(name, **args)
    if drop_path:
        arguments["drop_path_rate"] = drop_path
    try:
        backbone: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    except (AssertionError, TypeError, ValueError) as error:
        reason = str(error) or "timm rejects the combination"
        raise ValueError(f"backbone {name!r} cannot be made with {arguments}: {reason}") from error
    # Convolutions are faster in the channels-last layout, in which views come; a transformer has only one of them.
    if not has_tokens(backbone):
        backbone.to(memory_format=torch.channels_last)
    if adapter is None:
        return backbone
    return AdaptedNetwork(backbone, width(backbone), hidden=adapter, dropout=adapter_dropout)


def timm_arguments(name: str, **args: Any) -> dict[str, Any]:
    """The arguments of `timm.create_model`, besides the name and num_classes=0, for a network with the same weights."""
    import timm

    return ({"dynamic_img_size": True} if timm.models.is_model_in_modules(name, _ANY_SIZE) else {}) | args


def outline(name: str, **args: Any) -> nn.Module:
    """The network on the meta device, without weights: for its width, patch size or layers. Read-only.

    Made once per name and arguments (about 0.1 s) and shared from then on. timm holds the patch size nowhere else: not
    all names carry it, arguments override it, and the stem of a hybrid network multiplies it.
    """
    key = f"{name} {sorted(args.items())}"  # a text, since lists and dicts are not hashable
    if key not in _OUTLINES:
        with torch.device("meta"):
            _OUTLINES[key] = make_backbone(name, **args)
    return _OUTLINES[key]


def width(backbone: nn.Module) -> int:
    """The number of pooled features."""
    # Some heads keep a hidden layer even without classes (MobileNet): the output has the width of that layer.
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)  # type: ignore[arg-type]


def has_tokens(backbone: nn.Module) -> bool:
    return hasattr(backbone, "num_prefix_tokens")


def patch_size(backbone: nn.Module) -> int | None:
    """The side in pixels of the square that becomes one token; None for a network without tokens."""
    return int(backbone.patch_embed.feat_ratio()) if has_tokens(backbone) else None  # type: ignore[union-attr,operator]


def check_patches(backbone: nn.Module, side: int) -> None:
    """Raise ValueError unless square images of `side` pixels consist of whole patches; any size without patches."""
    patch = patch_size(backbone) or 1
    if side % patch:
        raise ValueError(f"views of {side} pixels do not consist of whole patches of {patch} pixels")


def open_residual_branches(name: str) -> dict[str, Any]:
    """Arguments that keep the residual branches of a ResNet from starting at zero, as they do by default in timm."""
    import timm

    is_resnet = timm.is_model(name) and timm.models.is_model_in_modules(name, ["resnet"])
    return {"zero_init_last": False} if is_resnet else {}


def tokens(backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled features (B, width), the [CLS] token where timm pools by it, and patch tokens (B, T, width).

    Register and distillation tokens are not included.
    """
    if not has_tokens(backbone):
        kind = type(backbone).__name__
        raise ValueError(f"backbone {kind} has no tokens: choose a vision transformer, e.g. vit_small_patch16_224")
    return _pooled_and_patches(backbone, backbone.forward_features(images))  # type: ignore[operator]


def feature_maps(backbone: nn.Module, images: Tensor, *, layers: Sequence[int] | None = None) -> list[Tensor]:
    """Dense feature maps (B, C, h, w) of images (B, C, H, W), in the order of the layers.

    A CNN has a map per stage, at strides such as 4, 8, 16 and 32; by default all of them. A transformer has a map per
    block, all at the stride of its patches, with the final norm applied; by default that of the last block.
    """
    intermediates = getattr(backbone, "forward_intermediates", None)
    if intermediates is None:
        kind = type(backbone).__name__
        raise ValueError(f"backbone {kind} has no feature maps: choose a timm network such as resnet50")
    if layers is None:
        layers = [-1] if has_tokens(backbone) else None
    found: list[Tensor] = intermediates(
        images, indices=None if layers is None else list(layers), norm=has_tokens(backbone), intermediates_only=True
    )
    return found


def masked_tokens(backbone: nn.Module, images: Tensor, hidden: Tensor, mask_token: Tensor) -> tuple[Tensor, Tensor]:
    """`tokens` of images with masked patches: `mask_token` (1, width) replaces their content, not their position.

    hidden: (B, h, w) bool, one value per patch. Without any True this equals `tokens`.
    """
    check_maskable(backbone)
    vit: Any = backbone
    patches = vit.patch_embed(images)  # (B, h, w, width); (B, T, width) if the image size is fixed
    if hidden.numel() != patches[..., 0].numel():
        raise ValueError(
            f"a mask is {tuple(hidden.shape)}, but must have a value for each patch of {tuple(images.shape)}"
        )
    masked = torch.where(hidden.view(*patches.shape[:-1], 1), mask_token.to(patches.dtype), patches)
    features = vit.norm(vit.blocks(vit.norm_pre(vit.patch_drop(vit._pos_embed(masked)))))
    return _pooled_and_patches(backbone, features)


def check_maskable(backbone: nn.Module) -> None:
    """Raise ValueError unless `masked_tokens` supports the backbone: its forward pass must be that of a plain ViT."""
    from timm.models.vision_transformer import VisionTransformer

    if getattr(type(backbone), "forward_features", None) is not VisionTransformer.forward_features:
        kind = type(backbone).__name__
        raise ValueError(
            f"backbone {kind} has no patches to hide: choose a plain vision transformer, e.g. vit_small_patch16_224"
        )


def _pooled_and_patches(backbone: nn.Module, features: Tensor) -> tuple[Tensor, Tensor]:
    pooled: Tensor = backbone.forward_head(features)  # type: ignore[operator]
    return pooled, features[:, backbone.num_prefix_tokens :]
