"""How other projects lay out the tensors of their checkpoints: one entry each, read by `checkpoints`.

Patterns are regular expressions that match the beginning of a tensor's name, after "module." of parallel training has
been taken off. To add a project, add an entry, and a file in its layout to tests/encoders/test_checkpoints.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hirl.encoders.weights_source import IMAGENET_MEAN, IMAGENET_STD, ImageFormat

Renames = tuple[tuple[str, str], ...]
IMAGENET = ImageFormat(224, IMAGENET_MEAN, IMAGENET_STD, "bilinear", 224 / 256)
BICUBIC = ImageFormat(224, IMAGENET_MEAN, IMAGENET_STD, "bicubic", 224 / 256)
UNCROPPED = ImageFormat(350, IMAGENET_MEAN, IMAGENET_STD, "bilinear", 1.0)
CLASSIFIERS = r"(fc|head|head_dist|head\.fc|classifier)\.(weight|bias)$"


@dataclass(frozen=True)
class Layout:
    """Where an encoder is in the checkpoint of a project.

    within: the dictionary of tensors in the file; "" for the file itself
    signs: each is in the names of a file of this layout
    encoder: the prefix of the encoder's tensors
    heads: tensors left out on purpose: within the encoder by their names there, elsewhere by their full names
    renames: from the project's names to timm's, one after another
    attention: heads of transformers whose width is not 64 times their number, by width
    labels: whether the project trains with labels; None if either may be
    """

    project: str
    within: tuple[str, ...]
    signs: tuple[str, ...]
    encoder: str = ""
    heads: tuple[str, ...] = ()
    renames: Renames = ()
    format: ImageFormat | None = None
    attention: dict[int, int] = field(default_factory=dict)
    labels: bool | None = False


# lightly's examples build the encoder as nn.Sequential of the children of torchvision's ResNet.
CHILDREN: Renames = (
    (r"0\.", "conv1."),
    (r"1\.", "bn1."),
    *((rf"{place}\.", f"layer{place - 3}.") for place in (4, 5, 6, 7)),
)
HF_BLOCKS: Renames = (
    (r"(vit|dinov2|dinov2_with_registers)\.", ""),
    (r"embeddings\.(cls_token|mask_token|register_tokens)", r"\1"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"(blocks\.\d+)\.attention\.attention\.", r"\1.attn."),
    (r"(blocks\.\d+)\.attention\.output\.dense", r"\1.attn.proj"),
    (r"(blocks\.\d+)\.(layernorm_before|norm1)\.", r"\1.norm1."),
    (r"(blocks\.\d+)\.(layernorm_after|norm2)\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.intermediate\.dense", r"\1.mlp.fc1"),
    (r"(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"(blocks\.\d+)\.layer_scale(\d)\.lambda1", r"\1.ls\2.gamma"),
    (r"layernorm\.", "norm."),
)
HF_RESNET: Renames = (
    (r"resnet\.", ""),
    (r"embedder\.embedder\.convolution", "conv1"),
    (r"embedder\.embedder\.normalization", "bn1"),
    *((rf"encoder\.stages\.{stage}\.layers\.", f"layer{stage + 1}.") for stage in range(4)),
    *((rf"(layer\d\.\d+)\.layer\.{place}\.convolution", rf"\1.conv{place + 1}") for place in range(3)),
    *((rf"(layer\d\.\d+)\.layer\.{place}\.normalization", rf"\1.bn{place + 1}") for place in range(3)),
    (r"(layer\d\.\d+)\.shortcut\.convolution", r"\1.downsample.0"),
    (r"(layer\d\.\d+)\.shortcut\.normalization", r"\1.downsample.1"),
)
# The first whose signs are all there.
LAYOUTS = (
    Layout(
        "HIRL's authors",
        ("model",),
        (r"(model\.)?backbone\.",),
        r"(model\.)?backbone\.",
        (
            r"(fc|head)\.|masked_embed|mask_token",
            r"(model\.)?(encoder|encoder_q|encoder_k|base_encoder|momentum_encoder|student|teacher|predictor|projector|"
            r"projection_head|prototypes|queue|center)",
            r"projections\.",
        ),
        format=BICUBIC,
    ),
    Layout(
        "MoCo v2", ("state_dict",), (r"encoder_q\.",), r"encoder_q\.", (r"fc\.", r"encoder_k\.|queue"), format=IMAGENET
    ),
    Layout(
        "MoCo v3",
        ("state_dict",),
        (r"base_encoder\.",),
        r"base_encoder\.",
        (r"(fc|head)\.", r"momentum_encoder\.|predictor\."),
        format=IMAGENET,
        attention={384: 12},
    ),
    Layout(
        "SimSiam",
        ("state_dict",),
        (r"encoder\.(conv1|layer1)\.", r"predictor\."),
        r"encoder\.",
        (r"fc\.", r"predictor\."),
        format=IMAGENET,
    ),
    Layout(
        "SwAV",
        ("", "state_dict"),
        (r"projection_head\.", r"prototypes\.", r"conv1\."),
        heads=(r"(projection_head|prototypes)\.",),
        format=IMAGENET,
    ),
    Layout(
        "iBOT",
        ("teacher",),
        (r"backbone\.", r"head\.(mlp2|last_layer2)\."),
        r"backbone\.",
        (r"masked_embed", r"head\."),
        format=BICUBIC,
    ),
    Layout(
        "DINOv2",
        ("teacher",),
        (r"backbone\.", r"dino_head\."),
        r"backbone\.",
        (r"mask_token", r"(dino|ibot)_head\."),
        format=BICUBIC,
    ),
    Layout("DINO", ("teacher",), (r"backbone\.", r"head\."), r"backbone\.", (r"head\.",), format=BICUBIC),
    Layout("MAE", ("model", ""), (r"decoder_embed\.", r"mask_token"), heads=(r"decoder_|mask_token",), format=BICUBIC),
    Layout(
        "lightly",
        ("state_dict",),
        (r"backbone\.0\.weight", r"backbone\.4\."),
        r"backbone\.",
        (r"(backbone|projection_head|prediction_head|student|teacher|prototypes|criterion|knn)",),
        CHILDREN,
    ),
    Layout(
        "stable-pretraining",
        ("state_dict",),
        (r"backbone\.", r"callbacks_(modules|metrics)\."),
        r"backbone\.",
        (CLASSIFIERS, r"(projector|predictor|classifier|callbacks_modules|callbacks_metrics)\."),
    ),
    Layout(
        "solo-learn",
        ("state_dict",),
        (r"backbone\.", r"(classifier|projector)\."),
        r"backbone\.",
        (CLASSIFIERS, r"(classifier|projector|predictor|prototypes|momentum_\w+|head)\.|queue|center"),
    ),
    Layout("imgsim", ("",), (r"pre\.conv1\.",), r"pre\.", (r"fc\.",), format=UNCROPPED),
    Layout("DINOv2", ("", "model"), (r"blocks\.0\.ls1\.", r"mask_token"), heads=(r"mask_token",), format=BICUBIC),
    Layout(
        "Hugging Face",
        ("",),
        (r"(\w+\.)?embeddings\.patch_embeddings\.projection", r"(\w+\.)?encoder\.layer\.0\."),
        heads=(r"mask_token", r"(\w+\.)?(classifier|pooler|decoder|embeddings\.mask_token)"),
        renames=HF_BLOCKS,
        labels=None,
    ),
    Layout(
        "Hugging Face",
        ("",),
        (r"(\w+\.)?embedder\.embedder\.convolution",),
        heads=(r"classifier\.",),
        renames=HF_RESNET,
        labels=None,
    ),
    Layout("timm or torchvision", ("", "state_dict", "model"), (), heads=(CLASSIFIERS,), labels=None),
)
