"""From images to features: preprocessing, the pass through the network, and a cache in memory and on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hirl.data.loader import EvaluationLoader, normalisation
from hirl.data.sources.escape import one_line
from hirl.data.sources.identity import image_identity, is_identified
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.evals.base import CPU
from hirl.evals.feature_cache import FeatureCache, ImageFeatures
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
        self._reported: set[ImageSet] = set()
        self._computed: dict[tuple[str, ImageSet], ImageFeatures] = {}

    def identity(self, images: ImageSet) -> dict[str, Any]:
        """`image_identity`, computed once: it looks at every file."""
        if images not in self._identities:
            self._identities[images] = image_identity(images)
        return self._identities[images]

    def features(self, images: ImageSet) -> Tensor:
        """(N, width): the encoder's pooled features; NaN for an image that cannot be read."""
        return self._pooled(images).rows

    def readable(self, images: ImageSet) -> Tensor:
        """(N,) bool: which images could be read when their features were computed."""
        return self._pooled(images).readable

    def representations(self, images: ImageSet) -> Tensor:
        """(N, 1 + L, D): z⁰…zᴸ by the run's heads, loaded when first needed; NaN for an image that cannot be read."""
        return self._get("representations", images, self._heads).rows

    def _pooled(self, images: ImageSet) -> ImageFeatures:
        return self._get("features", images, lambda: (self.network, self.encoder.sha256))

    def _heads(self) -> tuple[nn.Module, str]:
        assert self.encoder.run is not None
        if self._trained is None:
            self._trained = load_trained(self.encoder.run, method=self._method).to(self.preprocessing.device)
        return self._trained, self._trained.sha256

    def _get(self, kind: str, images: ImageSet, find: Callable[[], tuple[nn.Module, str]]) -> ImageFeatures:
        if (kind, images) not in self._computed:
            network, sha256 = find()

            def compute() -> ImageFeatures:
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
            self._warn(images, self._computed[kind, images].readable)
        return self._computed[kind, images]

    def _warn(self, images: ImageSet, readable: Tensor) -> None:
        """Report the images without features, also of features that were cached; once per set.

        Those of a set in memory were reported when it was read.
        """
        if not readable.all() and images.readable is None and images not in self._reported:
            self._reported.add(images)
            first = images.path(int((~readable).nonzero()[0]))
            warnings.warn(
                f"{int((~readable).sum())} of the {len(images):,} images of {images.name} could not be read and have "
                f"no features; the first: {one_line(first)}",
                stacklevel=2,
            )


@torch.no_grad()
def extract_features(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing, *, task: str, progress: Progress
) -> ImageFeatures:
    """The network's output for every image in order, computed in eval mode, on the CPU."""
    loader = preprocessing.loader(images)
    training = network.training
    network.eval()
    features: Tensor | None = None
    readable = torch.ones(len(images), dtype=torch.bool)
    done = 0
    for batch in loader:
        output = network(batch.views[0]).float().cpu()
        if features is None:
            features = torch.empty(len(images), *output.shape[1:])
        output[~batch.readable] = torch.nan
        features[done : done + len(output)] = output
        readable[done : done + len(output)] = batch.readable
        done += len(output)
        progress(task, done, len(images))
    network.train(training)
    assert features is not None  # a loader has at least one image
    unsound = ~features.flatten(1).isfinite().all(1) & readable
    if unsound.any():
        first = int(unsound.nonzero()[0])
        raise ValueError(
            f"the network gives features that are NaN or infinite for {int(unsound.sum()):,} of the {len(images):,} "
            f"images of {images.name}, the first being {images.path(first)}: its weights are not sound"
        )
    return ImageFeatures(features, readable)


def check_same(encoder: Encoder, **given: Any) -> None:
    """An encoder is evaluated with the preprocessing it was trained with: another would misjudge it."""
    for name, value in given.items():
        own = getattr(encoder, name)
        value = tuple(value) if isinstance(value, list) else value
        if value is not None and own is not None and value != own:
            raise ValueError(f"{name} is {value}, but {encoder.name} was trained with {own}: leave it out")


@torch.inference_mode()
def check_features(extractor: Extractor, channels: int) -> None:
    """Try the encoder on two blank images: many networks take images of one size only."""
    name, size = extractor.encoder.name, extractor.preprocessing.size
    try:
        features = extractor.network(torch.zeros(2, channels, size, size, device=extractor.preprocessing.device))
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{name} cannot take images of {size} × {size} pixels in {channels} channels: {lines[0].rstrip('.')}; give "
            "its own image_size"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"{name} must give pooled features of shape (B, width), but gives {shape} for 2 images")
