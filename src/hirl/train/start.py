"""The encoder that a run starts from, if it is not trained from scratch.

A method whose backbone has an adapter keeps it frozen; any other method trains all of it, or its last blocks. From a
checkpoint of the method's own authors, the heads are loaded too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl.data.views.normalisation import default_normalisation
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import width
from hirl.encoders.embedded import DEFAULT_ENCODER
from hirl.encoders.encoder_file import EncoderMetadata, fit_weights, load_encoder, load_metadata, save_encoder
from hirl.encoders.weights_source import Provenance
from hirl.features.open_encoder import Encoder, open_encoder, run_of_checkpoint
from hirl.features.view_cache import CachedViews, compute_or_load_views, fitting_views
from hirl.methods.base import Method
from hirl.methods.foreign_state import ForeignState, find_foreign_state
from hirl.methods.parts.augmentations import moco_view
from hirl.run import Run
from hirl.terminal.progress import Progress, no_progress, progress_bars
from hirl.train.adaptation_defaults import adaptation_recipe
from hirl.train.settings import GivenSettings, Settings, earlier_settings
from hirl.train.training_images import TrainingImages

AUTO = "auto"


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
    path = Path(source).expanduser()
    if isinstance(method, Method) and path.is_file() and run_of_checkpoint(path) is None and not load_metadata(path):
        # A file of weights that does not name its network is assumed to be for the method's backbone.
        args = {name: value for name, value in (method.backbone_args or {}).items() if name != "adapter"}
        encoder = open_encoder(source, backbone=method.backbone, backbone_args=args, channels=given.channels)
    else:
        encoder = open_encoder(source)
    return Start(source, encoder, open_heads(source, method) if heads else None)


def _find_start(given: GivenSettings, run: Run) -> str | None:
    """The name of the encoder to start from: the one given, that of the run to continue, or the embedded one."""
    if given.encoder != AUTO:
        return given.encoder
    if isinstance(given.method, Method) or given.channels != 3 or adaptation_recipe(given.method) is None:
        return None
    earlier = earlier_settings(run, given.method)
    return DEFAULT_ENCODER if earlier is None else earlier.encoder


def open_heads(source: str, method: Method | type[Method]) -> ForeignState | None:
    """All networks of the method in its authors' checkpoint; None for any other source, or if an adapter is trained.

    Without heads, a method still starts from the encoder of the file.
    """
    path = Path(source).expanduser()
    if not path.is_file() or run_of_checkpoint(path) is not None or load_metadata(path) is not None:
        return None
    if isinstance(method, Method):
        return None if method.has_adapter else find_foreign_state(type(method), path)
    return find_foreign_state(method, path)


def start_features(fabric: Fabric, settings: Settings, data: TrainingImages, start: Encoder) -> CachedViews:
    """The frozen encoder's features of all training images and of views of them; the first process computes them."""
    count, size = fitting_views(len(data), width(start.network), settings.cached_views), settings.image_size

    def compute(progress: Progress = no_progress) -> CachedViews:
        return compute_or_load_views(
            start.network,
            start.sha256,
            data.images,
            moco_view(size),  # for all methods: they share the cached features
            count,
            size=size,
            device=fabric.device,
            progress=progress,
            **data.reading(settings),
        )

    if fabric.is_global_zero:
        with progress_bars() as progress:
            compute(progress)
    fabric.barrier()
    return compute()


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
