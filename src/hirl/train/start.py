"""The encoder that a run starts from, if it does not start from nothing.

A method whose backbone has an adapter keeps it frozen; any other method goes on training all of it, or its last blocks.
From a checkpoint of the method's own authors its heads come along.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl.data.loader import default_normalisation
from hirl.data.sources.image_set import ImageSet, Subset
from hirl.data.views import Jitter, View
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import width
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.encoders.encoder_file import (
    EncoderMetadata,
    fit_weights,
    load_encoder,
    load_metadata,
    network_hash,
    save_encoder,
)
from hirl.encoders.weights_source import Provenance
from hirl.features.open_encoder import Encoder, open_encoder, run_of_checkpoint
from hirl.features.view_cache import CachedViews, cached_views, fitting_views
from hirl.files import CHECKSUM, atomic_write
from hirl.methods.base import Method
from hirl.methods.foreign_state import ForeignState, find_foreign_state
from hirl.methods.parts.augmentations import blur_unless_small
from hirl.run import Run
from hirl.terminal.progress import Progress, no_progress, progress_bars
from hirl.train.defaults import adaptation_recipe
from hirl.train.settings import Settings, earlier_settings
from hirl.train.start_and_adapted import adapted_rows, compare_with_start, comparison_text, spread_over

AUTO = "auto"


def find_start(given: str | None, method: Method | type[Method], channels: int, run: Run) -> str | None:
    """The name of the encoder to start from: the one given, that of the run to continue, or the embedded one."""
    if given != AUTO:
        return given
    if isinstance(method, Method) or channels != 3 or adaptation_recipe(method) is None:
        return None
    earlier = earlier_settings(run, method)
    return DEFAULT_ENCODER if earlier is None else earlier.encoder


def open_start(source: str, method: Method | type[Method], channels: int) -> Encoder:
    """Open the encoder; a file of weights alone is taken for the method's backbone."""
    path = Path(source).expanduser()
    if isinstance(method, Method) and path.is_file() and run_of_checkpoint(path) is None and not load_metadata(path):
        return open_encoder(source, backbone=method.backbone, backbone_args=frozen_arguments(method), channels=channels)
    return open_encoder(source)


def open_heads(source: str, method: Method | type[Method]) -> ForeignState | None:
    """All networks of the method in a checkpoint of its authors; None for anything else, and if an adapter is trained.

    Without heads, a method still starts from the encoder of the file.
    """
    path = Path(source).expanduser()
    if not path.is_file() or run_of_checkpoint(path) is not None or load_metadata(path) is not None:
        return None
    if isinstance(method, Method):
        return None if method.is_adapted else find_foreign_state(type(method), path)
    return find_foreign_state(method, path)


def frozen_arguments(method: Method) -> dict[str, object]:
    """The arguments of the method's backbone without an adapter."""
    return {name: value for name, value in (method.backbone_args or {}).items() if name != "adapter"}


def load_start(method: Method, start: Encoder) -> None:
    """Load the weights of the start into every copy of the method's encoder."""
    weights = start.network.state_dict()
    for encoder in method.encoder_copies:
        network = encoder.frozen if isinstance(encoder, AdaptedNetwork) else encoder
        fit_weights(network, weights, source=start.name, name=method.backbone)


def start_provenance(start: Encoder, heads: ForeignState | None = None) -> Provenance:
    """Where the start's weights come from. Those that hirl trained from nothing have seen no labels."""
    found = start.provenance or Provenance(f"{start.name}, trained by hirl", labels=False)
    return found if heads is None else replace(found, left_out="")


def heads_summary(heads: ForeignState, settings: Settings) -> str:
    """What else comes from the file that the encoder comes from, and what follows from it."""
    kept = getattr(settings.method, "queue_length", None)
    shorter = kept is not None and "queue" in heads.weights and kept < len(heads.weights["queue"])
    text = f"heads come along: {heads.parts}{f', of which the newest {kept:,} are kept' if shorter else ''}"
    if settings.hierarchy is None or settings.hierarchy.start_epoch:
        return text
    return f"{text}; z0 is trained already, so the first tree is built before the first epoch"


def start_features(fabric: Fabric, settings: Settings, images: ImageSet, start: Encoder, **reading: Any) -> CachedViews:
    """The frozen encoder's features of all training images and of views of them; the first process computes them."""
    count, size = fitting_views(len(images), width(start.network), settings.cached_views), settings.image_size
    reading |= {"size": size, "device": fabric.device}

    def compute(progress: Progress = no_progress) -> CachedViews:
        view = adaptation_view(size)
        return cached_views(start.network, start.sha256, images, view, count, progress=progress, **reading)

    if fabric.is_global_zero:
        with progress_bars() as progress:
            compute(progress)
    fabric.barrier()
    return compute()


def adaptation_view(size: int) -> View:
    """The augmentation of MoCo v2, for all methods: what they share is computed once."""
    jitter = Jitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, probability=0.8)
    return View(size=size, scale=(0.2, 1.0), jitter=jitter, grey=0.2, blur=blur_unless_small(size, 0.5))


def check_same_start(run: Run, start: Encoder, weights: dict[str, Tensor]) -> None:
    """Raise a ValueError if the start is no longer the network that the run's encoder, of these weights, stands on."""
    frozen = {name.removeprefix("frozen."): tensor.cpu() for name, tensor in weights.items()}
    if not all(torch.equal(frozen[name], tensor.cpu()) for name, tensor in start.network.state_dict().items()):
        raise ValueError(
            f"{start.name} is no longer the encoder that {str(run.folder)!r} started from: restore it, or name another "
            "folder with --out"
        )


def write_start(run: Run, start: Encoder, image_size: int, weights: dict[str, Tensor] | None = None) -> None:
    """Write start.safetensors, unless it is there and sound: the encoder that adaptation began with stays at hand.

    `weights`: of the run's adapted encoder, whose frozen part must be the start; None if the start itself trains.
    """
    try:
        load_encoder(run.start_file)
    except (ValueError, OSError):
        if weights is not None:
            check_same_start(run, start, weights)
        own = default_normalisation(3)
        about = start.about["backbone"], start.about["backbone_args"]
        normal = start.mean or own.mean, start.std or own.std
        metadata = EncoderMetadata(*about, image_size, *normal, provenance=start_provenance(start))
        save_encoder(run.start_file, start.network, metadata)


def compare_start(
    run: Run, settings: Settings, cached: CachedViews | None, images: ImageSet, start: Encoder, **reading: Any
) -> str:
    """Measure the start and the adapted encoder, write adaptation.json, and return what to print.

    `cached`: the start's features of views, which an adapter was trained on; None if its own blocks were trained.
    """
    levels = None if settings.hierarchy is None else settings.hierarchy.levels
    if cached is None:
        index, before, after = _features_of_both(settings, images, start, **reading)
    else:
        index = spread_over(cached.readable.nonzero()[:, 0])
        before = cached.rows[index, :2].float()  # (n, 2, width): the image and a view of it
        after = adapted_rows(settings.method.encoder, before)
    known = None if images.labels is None else images.labels[index]
    sides = compare_with_start(before, after, known, levels, seed=settings.seed)
    with atomic_write(run.adaptation_file, checksum=True) as aside:
        aside.write_text(json.dumps({"checksum": CHECKSUM, **sides}, indent=1), encoding="utf-8")
    return f"{comparison_text(sides)}\nThe start is {run.start_file}: any command takes it in place of the run."


def _features_of_both(
    settings: Settings, images: ImageSet, start: Encoder, **reading: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Some images (n,), and the features (n, 2, width) of each and of a view of it, by start and trained encoder."""
    index = spread_over(torch.arange(len(images)))
    size = settings.image_size
    trained = settings.method.encoder.eval()
    start_rows, trained_rows = (
        cached_views(network, sha256, Subset(images, index), adaptation_view(size), 1, size=size, **reading)
        for network, sha256 in ((start.network, start.sha256), (trained, network_hash(trained.state_dict())))
    )
    readable = start_rows.readable
    return index[readable], start_rows.rows[readable].float(), trained_rows.rows[readable].float()
