"""Builds the components of a run: loaders, networks and the heads of HIRL; checks that they fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch._functorch.config as functorch_config
from lightning_fabric import Fabric

from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.views.normalisation import choose_normalisation
from hirl.encoders.backbones import width
from hirl.features.view_cache import CachedFeatureLoader
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import ResolvedHierarchy
from hirl.methods.base import Method, Plan
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.seeds import Stream, mix_seed
from hirl.train.feature_loader import FeatureLoader
from hirl.train.machine import Machine, read_machine
from hirl.train.memory import check_memory, estimate_need
from hirl.train.settings import Settings
from hirl.train.start import Start, start_features
from hirl.train.training_images import TrainingImages
from hirl.train.unfreezing import Unfreezing


@dataclass(frozen=True)
class Components:
    """What a run trains with. `hierarchy` and `paths` are None for a baseline."""

    method: Method
    hierarchy: ResolvedHierarchy | None
    paths: SemanticPaths | None
    plan: Plan
    loader: Loader | FeatureLoader
    evaluation_loader: EvaluationLoader | CachedFeatureLoader  # this process's share of all images, uncropped
    N: int
    seed: int
    unfreezing: Unfreezing | None = None


def build(
    fabric: Fabric,
    settings: Settings,
    data: TrainingImages,
    start: Start | None = None,
    *,
    compile_networks: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> Components:
    """Build the loaders, the method's networks, with random weights or those of `start`, and the heads of HIRL.

    `announce`: for the pass that computes features of a frozen encoder.
    """
    method, seed = settings.method, settings.seed
    loader, evaluation_loader = _open_loaders(fabric, settings, data, start, announce)
    steps = len(loader) // settings.accumulate
    plan = Plan(
        settings.epochs, steps, settings.batch_size, settings.image_size, settings.channels, settings.accumulate
    )
    torch.manual_seed(mix_seed(seed, Stream.NETWORKS))
    method.build(plan)
    if start is not None:
        start.load_into(method)
    unfreezing = Unfreezing.of(method, settings.unfreeze, plan) if settings.unfreeze else None
    if compile_networks:
        # HIRL's diagnostics go backward through a network before the step does, which donated buffers do not survive.
        with suppress(AttributeError):  # torch 2.5 donates none
            functorch_config.donated_buffer = False
        for network in method.children():
            network.compile()
    return Components(
        method=method,
        hierarchy=settings.hierarchy,
        paths=build_paths(settings.hierarchy, method, seed),
        plan=plan,
        loader=loader,
        evaluation_loader=evaluation_loader,
        N=len(data),
        seed=seed,
        unfreezing=unfreezing,
    )


def _open_loaders(
    fabric: Fabric, settings: Settings, data: TrainingImages, start: Start | None, announce: Callable[[str], None]
) -> tuple[Loader | FeatureLoader, EvaluationLoader | CachedFeatureLoader]:
    """Loaders of views and of all images uncropped; both yield cached features if the encoder stays frozen."""
    share: dict[str, Any] = {"rank": fabric.global_rank, "world_size": fabric.world_size, "device": fabric.device}
    ordered = share | {"batch_size": settings.part_size, "seed": settings.seed}
    views, reading = settings.method.views(settings.image_size), data.reading(settings)
    if start is None or not settings.method.has_adapter:
        loader = Loader(data.images, views, **reading, **ordered)
        return loader, EvaluationLoader(data.images, size=settings.image_size, **reading, **share)
    cached = start_features(fabric, settings, data, start.encoder, announce)
    normalisation = choose_normalisation(data.images, settings.mean, settings.std)
    features = FeatureLoader(cached, len(views), normalisation=normalisation, neighbours=settings.neighbours, **ordered)
    return features, CachedFeatureLoader(cached, **share)


def build_paths(hierarchy: ResolvedHierarchy | None, method: Method, seed: int) -> SemanticPaths | None:
    """Build the heads h_l for z⁰ of the method, or without heads the paths of its features; None for a baseline."""
    if hierarchy is None:
        return None
    torch.manual_seed(mix_seed(seed, Stream.HEADS))
    paths = SemanticPaths(
        method.dim if hierarchy.head_layers else width(method.encoder),
        hierarchy.levels,
        negatives=hierarchy.negatives,
        head_layers=hierarchy.head_layers,
        weight=hierarchy.weight,
        loss=hierarchy.loss,
        temperature=hierarchy.temperature,
        builder=hierarchy.builder,
    )
    synchronise_batch_norm(paths)
    return paths


def memory_warning(fabric: Fabric, settings: Settings, components: Components) -> str | None:
    """Raise a ValueError if the run does not fit into memory; return a warning if it only just fits."""
    device = fabric.device.type
    machine: Machine = fabric.broadcast(read_machine(device), src=0)  # so that all processes decide alike
    need = estimate_need(
        settings.method,
        components.plan,
        images=settings.part_size // fabric.world_size,
        N=components.N,
        workers=components.loader.workers,
        device=device,
        mixed="mixed" in settings.precision,
    )
    if need is None:
        return None
    return check_memory(need, machine, batch_size=settings.batch_size, accumulate=settings.accumulate)
