"""torchvision's vision transformers as timm's: the same network under other names, which the pyramid can read."""

from __future__ import annotations

from typing import Any

from torch import nn

from hirl.encoders.torchvision_networks import vit_to_timm


def is_torchvision_vit(network: nn.Module) -> bool:
    from torchvision.models.vision_transformer import VisionTransformer

    return isinstance(network, VisionTransformer)


def as_timm(network: nn.Module) -> nn.Module:
    """A timm network of the same weights; a stem of convolutions is refused."""
    from timm.models.vision_transformer import VisionTransformer

    vit: Any = network
    if not isinstance(vit.conv_proj, nn.Conv2d):
        raise ValueError("a detector needs a vision transformer that cuts plain patches, but this one has a stem")
    layers = list(vit.encoder.layers)
    made = VisionTransformer(
        img_size=vit.image_size,
        patch_size=vit.patch_size,
        in_chans=vit.conv_proj.in_channels,
        num_classes=0,
        embed_dim=vit.hidden_dim,
        depth=len(layers),
        num_heads=layers[0].num_heads,
        mlp_ratio=vit.mlp_dim / vit.hidden_dim,
        dynamic_img_size=True,
    )
    weights = vit.state_dict()
    state = {vit_to_timm(name): weight for name, weight in weights.items() if not name.startswith("heads.")}
    made.load_state_dict(state)
    ours: nn.Module = made
    return ours
