"""From images to features: the pass through the network, on one process or several, and a cache of its output."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from math import ceil
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl import ranks
from hirl.data.sources.escape import one_line
from hirl.data.sources.identity import image_identity, image_keys, is_identified
from hirl.data.sources.image_set import ImageSet, Subset
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.encoder_file import network_hash
from hirl.encoders.folding import fold_batch_norms
from hirl.features.feature_cache import Allocate, FeatureCache, ImageFeatures, KnownFeatures, allocate_in_memory
from hirl.features.forward_pass import forward_pass
from hirl.features.open_encoder import Encoder
from hirl.features.preprocessing import Preprocessing, check_features
from hirl.features.view_cache import compute_or_load_views
from hirl.freed_memory import keep_freed_memory
from hirl.methods.base import Method
from hirl.processes import run_on_first
from hirl.runs.representations import Trained
from hirl.terminal.progress import Progress, no_progress

Kind = Literal["features", "representations"]


class Extractor:
    """Pooled features and z⁰…zᴸ of image sets by one encoder, each computed once.

    `method`: the class of the run's method, if it is not part of hirl.
    """

    def __init__(
        self,
        encoder: Encoder,
        preprocessing: Preprocessing,
        cache: FeatureCache = FeatureCache(None),  # noqa: B008 (frozen)
        *,
        method: str | type[Method] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        keep_freed_memory()
        self.encoder, self.preprocessing, self.cache, self.progress = encoder, preprocessing, cache, progress
        self.network = encoder.network.to(preprocessing.device)
        self._method = method
        self._trained: Trained | None = None
        self._identities: dict[ImageSet, dict[str, Any]] = {}
        self._reported: set[ImageSet] = set()
        self._computed: dict[tuple[str, ImageSet], ImageFeatures] = {}

    def check(self, channels: int) -> None:
        """Raise a ValueError if the network does not take images of this size and so many channels."""
        size, device = self.preprocessing.size, self.preprocessing.device
        check_features(self.encoder.name, self.network, torch.zeros(2, channels, size, size, device=device))

    def load_heads(self) -> Trained:
        """The run's method and heads; a ValueError if they cannot be loaded."""
        if self._trained is None:
            self._trained = self.encoder.load_trained(method=self._method).to(self.preprocessing.device)
        return self._trained

    def identity(self, images: ImageSet) -> dict[str, Any]:
        """`image_identity`, computed once: it looks at every file."""
        if images not in self._identities:
            self._identities[images] = image_identity(images)
        return self._identities[images]

    def features(self, images: ImageSet) -> Tensor:
        """(N, width): the encoder's pooled features; NaN for an image that cannot be read."""
        return self._get("features", images).rows

    def readable(self, images: ImageSet) -> Tensor:
        """(N,) bool: which images could be read when their features were computed."""
        return self._get("features", images).readable

    def representations(self, images: ImageSet) -> Tensor:
        """(N, 1 + L, D): z⁰…zᴸ by the run's heads, loaded when first needed; NaN for an image that cannot be read."""
        return self._get("representations", images).rows

    def forget(self, images: ImageSet) -> None:
        """Free the memory of what was computed for these images."""
        self._identities.pop(images, None)
        self._reported.discard(images)
        for kind in ("features", "representations"):
            self._computed.pop((kind, images), None)

    def _with_frozen_features(self, network: nn.Module, images: ImageSet, resized: Preprocessing) -> Preprocessing:
        """With the features of an adapted network's frozen part, which all that was adapted from it share."""
        adapted = network.method.encoder if isinstance(network, Trained) else network
        usual = resized.interpolation == "bilinear" and resized.crop is None and ranks.world().size == 1
        if not isinstance(adapted, AdaptedNetwork) or not usual or not is_identified(self.identity(images)):
            return resized
        given: dict[str, Any] = {"size": resized.size, "device": resized.device, "workers": resized.workers}
        given |= asdict(resized.normalisation) | {"progress": self.progress}
        sha256 = network_hash(adapted.frozen.state_dict())
        return replace(resized, frozen=compute_or_load_views(adapted.frozen, sha256, images, None, 0, **given))

    def _get(self, kind: Kind, images: ImageSet) -> ImageFeatures:
        if (kind, images) not in self._computed:
            network, sha256, preprocessing = self._network_of(kind)
            preprocessing = self._with_frozen_features(network, images, preprocessing)
            task, fold = f"{kind} of {images.name}", kind == "features"
            compute = partial(
                extract_features, network, images, preprocessing, task=task, progress=self.progress, fold=fold
            )
            cache = self.cache if is_identified(self.identity(images)) else FeatureCache(None)
            key = self._cache_key(sha256, images, preprocessing)
            world = ranks.world()
            known = world.size > 1 and run_on_first(lambda: cache.find(kind, key) is not None)
            if world.rank == 0:
                keys = partial(image_keys, images, range(len(images)))
                cache = cache if world.size == 1 and kind == "features" else replace(cache, by_image=False)
                self._computed[kind, images] = cache.get_or_compute(kind, key, compute, keys)
            elif known:  # the first process reads them
                self._computed[kind, images] = ImageFeatures(torch.empty(0), torch.ones(len(images), dtype=torch.bool))
            else:
                self._computed[kind, images] = compute(allocate_in_memory)
            self._warn(images, self._computed[kind, images].readable)
        return self._computed[kind, images]

    def _network_of(self, kind: Kind) -> tuple[nn.Module, str, Preprocessing]:
        """The network that computes them, its hash, and how its images are prepared."""
        if kind == "features":
            return self.network, self.encoder.sha256, self.preprocessing
        trained = self.load_heads()
        # Trees are built over images that were resized bilinearly: so must be what is compared with them.
        return trained, trained.sha256, replace(self.preprocessing, interpolation="bilinear")

    def _cache_key(self, sha256: str, images: ImageSet, preprocessing: Preprocessing) -> dict[str, Any]:
        key: dict[str, Any] = {
            "network": sha256,
            "size": preprocessing.size,
            "normalisation": asdict(preprocessing.normalisation),
            "images": self.identity(images),
        }
        if preprocessing.interpolation != "bilinear":
            key["interpolation"] = preprocessing.interpolation
        if preprocessing.crop is not None:
            key["crop"] = preprocessing.crop
        return key

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


def extract_features(
    network: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    allocate: Allocate = allocate_in_memory,
    *,
    task: str,
    progress: Progress,
    fold: bool = False,
    known: KnownFeatures | None = None,
) -> ImageFeatures:
    """The network's output for every image in order, on the CPU; those of images that are `known` are copied.

    Each process takes its share; the first one gets all of them, the others get none. `fold`: batch norms are folded,
    which rounds anew. A run's representations must not be: its tree was built without.
    """
    world = ranks.world()
    features: Tensor | None = None
    readable = torch.zeros(len(images), dtype=torch.bool)
    new = torch.ones(len(images), dtype=torch.bool)
    if known is not None:
        features = allocate((len(images), *known.features.rows.shape[1:]))
        features[known.places] = known.features.rows.to(features.dtype)
        readable[known.places], new[known.places] = known.features.readable, False
    places = new.nonzero().flatten()
    several = images if known is None else Subset(images, places)
    network = fold_batch_norms(network) if fold else network
    non_finite: list[int] = []
    for found, rows, done in _gathered_outputs(network, several, preprocessing) if len(places) else ():
        index = places[found]
        if world.rank == 0:
            if features is None:
                features = allocate((len(images), *rows.shape[1:]))
            features[index] = rows.to(features.dtype)
            readable[index] = True
            non_finite += index[~features[index].flatten(1).isfinite().all(1)].tolist()
            progress(task, done, len(places))
    if world.rank > 0:
        return ImageFeatures(torch.empty(0), torch.ones(len(images), dtype=torch.bool))
    assert features is not None  # a loader has at least one image
    if non_finite:
        half = " in half precision" if features.dtype == torch.float16 else ""
        raise ValueError(
            f"the network gives features that are NaN or infinite{half} for {len(non_finite):,} of the {len(images):,} "
            f"images of {images.name}, the first being {images.path(min(non_finite))}: its weights are not sound"
        )
    features[~readable] = torch.nan
    return ImageFeatures(features, readable)


def _gathered_outputs(
    network: nn.Module, images: ImageSet, preprocessing: Preprocessing
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Per batch of all processes its readable images, the outputs for them, and how many images are done."""
    world = ranks.world()
    if world.size == 1 or len(images) < world.size:
        loader = preprocessing.loader(images)
        for place, (index, rows) in enumerate(forward_pass(network, loader), start=1):
            yield index, rows.cpu(), min(place * loader.batch_size, len(images))
        return
    loader = preprocessing.loader(images, rank=world.rank, world_size=world.size)
    outputs, most = forward_pass(network, loader), loader.batch_size
    rows = torch.empty(0)
    for place in range(1, ceil(ceil(len(images) / world.size) / most) + 1):
        # The last batch may be that of fewer processes: a process without one sends none of the rows it had.
        index, rows = next(outputs, (torch.empty(0, dtype=torch.int64), rows[:0]))
        # Equally many rows per process.
        padded = F.pad(rows.flatten(1), (0, 0, 0, most - len(rows)))
        marks = F.pad(index, (0, most - len(index)), value=-1).to(rows.device)
        every, mark = world.gather(padded).cpu(), world.gather(marks).cpu()
        real = mark >= 0
        done = min(place * most * world.size, len(images))
        yield mark[real], every[real].unflatten(1, rows.shape[1:]), done
