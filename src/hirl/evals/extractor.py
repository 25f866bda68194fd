"""From images to features: preprocessing, the pass through the network, and a cache in memory and on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hirl.data.loader import EvaluationLoader, normalisation
from hirl.data.sources.identity import image_identity, is_identified
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.evals.base import CPU
from hirl.evals.feature_cache import FeatureCache
from hirl.methods.base import Method
from hirl.runs.open_encoder import Encoder
from hirl.runs.representations import Trained, load_trained
from hirl.terminal.progress import Progress


@dataclass(frozen=True)
class Preprocessing:
    """Images resized and centre-cropped to `size`, then normalised."""

    size: int
    normalisation: Normalisation
    device: torch.device = CPU
    workers: int | None = None

    def loader(self, images: ImageSet) -> EvaluationLoader:
        mean, std = self.normalisation.mean, self.normalisation.std
        return EvaluationLoader(images, size=self.size, mean=mean, std=std, device=self.device, workers=self.workers)


def preprocessing_for(
    encoder: Encoder,
    images: ImageSet,
    *,
    image_size: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: torch.device = CPU,
    workers: int | None = None,
) -> Preprocessing:
    """What the encoder was trained with; else what is given; else the size of small images or 224, and ImageNet's
    normalisation."""
    size = next(size for size in (encoder.image_size, image_size, images.default_size) if size is not None)
    normal = normalisation(images, encoder.mean or _tuple(mean), encoder.std or _tuple(std))
    return Preprocessing(size, normal, device, workers)


def _tuple(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


class Extractor:
    """Pooled features and z⁰…zᴸ of image sets by one encoder, each computed once.

    `method`: the class of the run's method, if it is not part of hirl.
    """

    def __init__(
        self,
        encoder: Encoder,
        preprocessing: Preprocessing,
        cache: FeatureCache,
        *,
        method: str | type[Method] | None = None,
        progress: Progress,
    ) -> None:
        self.encoder, self.preprocessing, self.cache, self.progress = encoder, preprocessing, cache, progress
        self.network = encoder.network.to(preprocessing.device)
        self._method = method
        self._trained: Trained | None = None
        self._identities: dict[ImageSet, dict[str, Any]] = {}
        self._computed: dict[tuple[str, ImageSet], Tensor] = {}

    def identity(self, images: ImageSet) -> dict[str, Any]:
        """`image_identity`, computed once: it looks at every file."""
        if images not in self._identities:
            self._identities[images] = image_identity(images)
        return self._identities[images]

    def features(self, images: ImageSet) -> Tensor:
        """(N, width): the encoder's pooled features."""
        return self._get("features", images, lambda: (self.network, self.encoder.sha256))

    def representations(self, images: ImageSet) -> Tensor:
        """(N, 1 + L, D): z⁰…zᴸ by the run's heads, which are loaded when they are first needed."""
        return self._get("representations", images, self._heads)

    def _heads(self) -> tuple[nn.Module, str]:
        assert self.encoder.run is not None
        if self._trained is None:
            self._trained = load_trained(self.encoder.run, method=self._method).to(self.preprocessing.device)
        return self._trained, self._trained.sha256

    def _get(self, kind: str, images: ImageSet, find: Callable[[], tuple[nn.Module, str]]) -> Tensor:
        if (kind, images) not in self._computed:
            network, sha256 = find()

            def compute() -> Tensor:
                task = f"{kind} of {images.name}"
                return extract_features(network, images, self.preprocessing, task=task, progress=self.progress)

            if self.cache.folder is None or not is_identified(self.identity(images)):
                self._computed[kind, images] = compute()
            else:
                key = {
                    "network": sha256,
                    "size": self.preprocessing.size,
                    "normalisation": asdict(self.preprocessing.normalisation),
                    "images": self.identity(images),
                }
                self._computed[kind, images] = self.cache.get_or_compute(kind, key, compute)
        return self._computed[kind, images]


@torch.no_grad()
def extract_features(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing, *, task: str, progress: Progress
) -> Tensor:
    """(N, …): the network's output for every image in order, computed in eval mode, on the CPU."""
    loader = preprocessing.loader(images)
    training = network.training
    network.eval()
    features: Tensor | None = None
    done = 0
    for batch in loader:
        output = network(batch.views[0]).float().cpu()
        if features is None:
            features = torch.empty(len(images), *output.shape[1:])
        features[done : done + len(output)] = output
        done += len(output)
        progress(task, done, len(images))
    network.train(training)
    assert features is not None  # a loader has at least one image
    if len(loader.skipped):
        warnings.warn(
            f"{len(loader.skipped)} of the {len(images):,} images of {images.name} could not be read and were replaced "
            f"by the next readable one; the first: {next(iter(loader.skipped))}",
            stacklevel=2,
        )
    unsound = ~features.flatten(1).isfinite().all(1)
    if unsound.any():
        first = int(unsound.nonzero()[0])
        raise ValueError(
            f"the network gives features that are NaN or infinite for {int(unsound.sum()):,} of the {len(images):,} "
            f"images of {images.name}, the first being {images.path(first)}: its weights are not sound"
        )
    return features
