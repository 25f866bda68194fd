"""From images to features: preprocessing, the pass through the network, and a cache in memory and on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.loader import EvaluationLoader, normalisation
from hirl.data.sources.escape import one_line
from hirl.data.sources.identity import image_identity, is_identified
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.evals.base import CPU, Interpolation
from hirl.evals.feature_cache import Allocate, FeatureCache, ImageFeatures, in_memory
from hirl.evals.processes import by_the_first
from hirl.methods.base import Method
from hirl.methods.parts import ranks
from hirl.runs.open_encoder import Encoder
from hirl.runs.representations import Trained
from hirl.terminal.progress import Progress


@dataclass(frozen=True)
class Preprocessing:
    """Images resized and centre-cropped to `size`, then normalised."""

    size: int
    normalisation: Normalisation
    device: torch.device = CPU
    workers: int | None = None
    interpolation: Interpolation = "bilinear"

    def loader(self, images: ImageSet, *, rank: int = 0, world_size: int = 1) -> EvaluationLoader:
        return EvaluationLoader(
            images,
            size=self.size,
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            interpolation=self.interpolation,
            device=self.device,
            workers=self.workers,
            rank=rank,
            world_size=world_size,
        )


def preprocessing_for(
    encoder: Encoder,
    images: ImageSet,
    *,
    image_size: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    device: torch.device = CPU,
    workers: int | None = None,
    interpolation: Interpolation = "bilinear",
) -> Preprocessing:
    """What the encoder was trained with; else what is given; else the size of small images or 224, and ImageNet's
    normalisation."""
    size = next(size for size in (encoder.image_size, image_size, images.default_size) if size is not None)
    normal = normalisation(images, encoder.mean or _tuple(mean), encoder.std or _tuple(std))
    return Preprocessing(size, normal, device, workers, interpolation)


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
        if self._trained is None:
            self._trained = self.encoder.load_trained(method=self._method).to(self.preprocessing.device)
        return self._trained, self._trained.sha256

    def _get(self, kind: str, images: ImageSet, find: Callable[[], tuple[nn.Module, str]]) -> ImageFeatures:
        if (kind, images) not in self._computed:
            network, sha256 = find()
            # Trees are built over images that were resized bilinearly: so must be what is compared with them.
            resized = (
                replace(self.preprocessing, interpolation="bilinear") if kind != "features" else self.preprocessing
            )

            def compute(allocate: Allocate) -> ImageFeatures:
                task = f"{kind} of {images.name}"
                return extract_features(network, images, resized, task=task, progress=self.progress, allocate=allocate)

            cache = self.cache if is_identified(self.identity(images)) else FeatureCache(None)
            key: dict[str, Any] = {
                "network": sha256,
                "size": resized.size,
                "normalisation": asdict(resized.normalisation),
                "images": self.identity(images),
            }
            if resized.interpolation != "bilinear":
                key["interpolation"] = resized.interpolation
            known = ranks.size() > 1 and by_the_first(lambda: cache.find(kind, key) is not None)
            if ranks.rank() == 0:
                self._computed[kind, images] = cache.get_or_compute(kind, key, compute)
            elif known:  # the first process reads them
                self._computed[kind, images] = ImageFeatures(torch.empty(0), torch.ones(len(images), dtype=torch.bool))
            else:
                self._computed[kind, images] = compute(in_memory)
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
    network: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    *,
    task: str,
    progress: Progress,
    allocate: Allocate = in_memory,
) -> ImageFeatures:
    """The network's output for every image in order, computed in eval mode, on the CPU.

    Each process takes its share; the first one gets all of them, the others get none.
    """
    training = network.training
    network.eval()
    features: Tensor | None = None
    readable = torch.ones(len(images), dtype=torch.bool)
    unsound: list[int] = []
    done = 0
    for index, output, could_read in _outputs(network, images, preprocessing):
        done += len(index)
        if ranks.rank() == 0:
            if features is None:
                features = allocate((len(images), *output.shape[1:]))
            output[~could_read] = torch.nan
            features[index] = output.to(features.dtype)
            readable[index] = could_read
            sound = features[index].flatten(1).isfinite().all(1)
            unsound += index[~sound & could_read].tolist()
            progress(task, done, len(images))
    network.train(training)
    if ranks.rank() > 0:
        return ImageFeatures(torch.empty(0), readable)
    assert features is not None  # a loader has at least one image
    if unsound:
        half = " in half precision" if features.dtype == torch.float16 else ""
        raise ValueError(
            f"the network gives features that are NaN or infinite{half} for {len(unsound):,} of the {len(images):,} "
            f"images of {images.name}, the first being {images.path(min(unsound))}: its weights are not sound"
        )
    return ImageFeatures(features, readable)


def _outputs(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per batch of all processes the indices of its images, the network's outputs and which images could be read."""
    shared = ranks.size() > 1 and len(images) >= ranks.size()
    loader = preprocessing.loader(images, **({"rank": ranks.rank(), "world_size": ranks.size()} if shared else {}))
    batches, place = iter(loader), 0
    rounds = ceil(ceil(len(images) / ranks.size()) / loader.batch_size) if shared else len(loader)
    output = torch.empty(0)
    for _ in range(rounds):
        batch = next(batches, None)
        count = 0 if batch is None else len(batch)
        index = torch.from_numpy(loader.indices[place : place + count])
        place += count
        if batch is not None:
            output = network(batch.views[0]).float()
        could_read = torch.ones(0, dtype=torch.bool) if batch is None else batch.readable
        if not shared:
            yield index, output.cpu(), could_read
            continue
        # Equally many rows per process: the last batches may differ by one row.
        most, device = loader.batch_size, output.device
        rows = F.pad(output[:count].flatten(1), (0, 0, 0, most - count))
        marks = F.pad(torch.stack([index, could_read.long()], 1), (0, 0, 0, most - count), value=-1).to(device)
        rows, marks = ranks.joined(rows).cpu(), ranks.joined(marks).cpu()
        real = marks[:, 0] >= 0
        yield marks[real, 0], rows[real].unflatten(1, output.shape[1:]), marks[real, 1].bool()


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
