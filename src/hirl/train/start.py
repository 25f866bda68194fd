"""The encoder that a run starts from, if it is not trained from scratch.

A method whose backbone has an adapter keeps it frozen; any other method trains all of it, or its last blocks. From a
checkpoint of the method's own authors, the heads are loaded too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl import ranks
from hirl.data.sources.image_set import BadImage
from hirl.data.views.normalisation import default_normalisation
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import width
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.encoders.encoder_file import EncoderMetadata, fit_weights, load_encoder, load_metadata, save_encoder
from hirl.encoders.weights_source import Provenance
from hirl.features.open_encoder import Encoder, open_encoder, run_of_checkpoint
from hirl.features.view_cache import CachedViews, compute_or_load_views, fitting_views
from hirl.files import expanded
from hirl.methods.base import Method
from hirl.methods.foreign_state import ForeignState, find_foreign_state
from hirl.methods.parts.augmentations import moco_view
from hirl.run import Run
from hirl.signals import Stopped, stop_signals
from hirl.terminal.progress import Progress, duration_text, on_terminal, progress_bars
from hirl.train.adaptation_defaults import ADAPT
from hirl.train.defaults import recipe_of
from hirl.train.settings import GivenSettings, Settings, earlier_settings
from hirl.train.training_images import TrainingImages

AUTO = "auto"
ESTIMATED_AFTER = 5.0  # seconds of a pass


@dataclass(frozen=True)
class Start:
    """An encoder to start from. `heads`: if given, all networks of the method from the same file are loaded instead."""

    source: str  # the name or file that was opened
    encoder: Encoder
    heads: ForeignState | None = None

    def load_into(self, method: Method) -> None:
        """Load the weights into the method's built networks, including every copy of its encoder."""
        if self.heads is not None:
            self.heads.load_into(method)
            return
        weights = self.encoder.network.state_dict()
        for encoder in method.encoder_copies:
            network = encoder.frozen if isinstance(encoder, AdaptedNetwork) else encoder
            fit_weights(network, weights, source=self.encoder.name, name=method.backbone)

    @property
    def encoder_provenance(self) -> Provenance:
        """Where the encoder's weights come from. Weights trained from scratch by hirl used no labels."""
        return self.encoder.provenance or Provenance(f"{self.encoder.name}, trained by hirl", labels=False)

    @property
    def provenance(self) -> Provenance:
        """Where all weights come from."""
        return self.encoder_provenance if self.heads is None else replace(self.encoder_provenance, left_out="")


def open_start(given: GivenSettings, run: Run, *, heads: bool) -> Start | None:
    """Open the encoder to start from, with `heads` also those in its file; None to train from scratch."""
    method = given.method
    source = _find_start(given, run)
    if source is None:
        return None
    path = expanded(source)
    if isinstance(method, Method) and path.is_file() and run_of_checkpoint(path) is None and not load_metadata(path):
        # A file of weights that does not name its network is assumed to be for the method's backbone.
        args = {name: value for name, value in (method.backbone_args or {}).items() if not name.startswith("adapter")}
        encoder = open_encoder(source, backbone=method.backbone, backbone_args=args, channels=given.channels)
    else:
        encoder = open_encoder(source)
    return Start(source, encoder, open_heads(source, method) if heads else None)


def _find_start(given: GivenSettings, run: Run) -> str | None:
    """The name of the encoder to start from: the one given, that of the run to continue, or the embedded one."""
    if given.encoder != AUTO:
        return given.encoder
    if isinstance(given.method, Method) or given.channels != 3 or recipe_of(given.method, ADAPT) is None:
        return None
    earlier = earlier_settings(run, given.method)
    return DEFAULT_ENCODER if earlier is None else earlier.encoder


def open_heads(source: str, method: Method | type[Method]) -> ForeignState | None:
    """All networks of the method in its authors' checkpoint; None for any other source, or if an adapter is trained.

    Without heads, a method still starts from the encoder of the file.
    """
    path = expanded(source)
    if not path.is_file() or run_of_checkpoint(path) is not None or load_metadata(path) is not None:
        return None
    if isinstance(method, Method):
        return None if method.has_adapter else find_foreign_state(type(method), path)
    return find_foreign_state(method, path)


def start_features(
    fabric: Fabric, settings: Settings, data: TrainingImages, start: Encoder, announce: Callable[[str], None]
) -> CachedViews:
    """The frozen encoder's features of all training images and of views of them; the first process computes them.

    A stop signal to any process ends all of them with Stopped, once what is computed has been saved.
    """
    count, size = fitting_views(len(data), width(start.network), settings.cached_views), settings.image_size

    def compute(**watch: Any) -> CachedViews:
        return compute_or_load_views(
            start.network,
            start.sha256,
            data.images,
            moco_view(size),  # for all methods: they share the cached features
            count,
            size=size,
            device=fabric.device,
            **watch,
            **data.reading(settings),
        )

    found = None
    with stop_signals() as should_stop:
        stopped = "stopped before the first epoch"
        if fabric.is_global_zero:
            try:
                with progress_bars() as bars:
                    report = _Report(announce, bars)
                    found = compute(begin=report.begin, progress=report.progress, should_stop=should_stop)
            except Stopped as error:
                stopped = str(error)
        stop = bool(ranks.world().max(torch.tensor(float(should_stop()))))
        if stop:
            announce(f"{stopped}; the same command continues")
            fabric.barrier()  # a launcher that sees another process end may kill the first one
            raise Stopped
    found = compute() if found is None else found
    if fabric.is_global_zero and not len(data.skipped):  # features of an earlier run: it alone has met the bad images
        for index in (~found.readable).nonzero()[:, 0].tolist():
            try:
                data.images.read(index)
            except BadImage as bad:
                data.skipped.add(bad)
    return found


class _Report:
    """Announces a pass that begins or goes on, and where there are no bars, some seconds later, how long it takes."""

    def __init__(self, announce: Callable[[str], None], bars: Progress) -> None:
        self.announce, self.bars = announce, bars
        self.began: tuple[float, int] | None = None  # time and images of a pass that is to be estimated

    def begin(self, task: str, done: int, total: int) -> None:
        place = f"continues at image {done:,} of {total:,}" if done else f"computed once, for {total:,} images"
        self.announce(f"{task}: {place}")
        self.began = None if on_terminal() else (time.monotonic(), done)

    def progress(self, task: str, done: int, total: int) -> None:
        self.bars(task, done, total)
        if self.began is None:
            return
        seconds, images = time.monotonic() - self.began[0], done - self.began[1]
        if seconds >= ESTIMATED_AFTER and done < total:
            self.began = None
            left = duration_text(seconds / images * (total - done))
            self.announce(f"{task}: {left} left, measured over {images:,} images")


def check_same_start(run: Run, start: Start, weights: dict[str, Tensor]) -> None:
    """Raise a ValueError if the start differs from the frozen part of the run's encoder, which has these weights."""
    frozen = {name.removeprefix("frozen."): tensor.cpu() for name, tensor in weights.items()}
    network = start.encoder.network
    if not all(torch.equal(frozen[name], tensor.cpu()) for name, tensor in network.state_dict().items()):
        raise ValueError(
            f"{start.encoder.name} is no longer the encoder that {str(run.folder)!r} started from: restore it, or name "
            "another folder with --out"
        )


def write_start(run: Run, start: Start, image_size: int, weights: dict[str, Tensor] | None = None) -> None:
    """Write start.safetensors, the encoder before adaptation, unless the file exists and is intact.

    `weights`: those of the run's adapted encoder, whose frozen part must equal the start; None if the start is trained.
    """
    try:
        load_encoder(run.start_file)
    except (ValueError, OSError):
        if weights is not None:
            check_same_start(run, start, weights)
        encoder, own = start.encoder, default_normalisation(3)
        about = encoder.description["backbone"], encoder.description["backbone_args"]
        normal = encoder.mean or own.mean, encoder.std or own.std
        metadata = EncoderMetadata(*about, image_size, *normal, provenance=start.encoder_provenance)
        save_encoder(run.start_file, encoder.network, metadata)
