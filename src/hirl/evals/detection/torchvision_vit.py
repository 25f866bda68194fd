"""torchvision's vision transformers as timm's: the same network under other names, which the pyramid can read."""

from __future__ import annotations

from typing import Any

from torch import nn

NAMES = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
}


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
    state = {
        "cls_token": vit.class_token,
        "pos_embed": vit.encoder.pos_embedding,
        "patch_embed.proj.weight": vit.conv_proj.weight,
        "patch_embed.proj.bias": vit.conv_proj.bias,
        "norm.weight": vit.encoder.ln.weight,
        "norm.bias": vit.encoder.ln.bias,
    }
    for number, layer in enumerate(layers):
        for name, value in layer.state_dict().items():
            for theirs, ours in NAMES.items():
                name = name.replace(theirs, ours)
            state[f"blocks.{number}.{name}"] = value
    made.load_state_dict(state)
    ours_module: nn.Module = made
    return ours_module
